"""What a command shows of an error: where in a user's own file it began, and no frame of ours before that.

Decides which frames are the user's. A file that does not parse, a function of it that fails and a call of ours that
it got wrong are the daily errors of whoever writes such a file; an error that no file of theirs takes part in is ours,
and keeps its whole traceback.
"""

import errno
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import thalweg
from thalweg.core.errors import InputError

_OTHERS = (str(Path(thalweg.__file__).parent), *(sysconfig.get_path(k) for k in ("stdlib", "purelib", "platlib")))
_FIXES = {
    errno.ENOENT: "check the path, and that its folder is there",
    errno.EACCES: "name a place where you may read and write",
    errno.EPERM: "name a place where you may read and write",
    errno.EROFS: "name a place where you may write",
    errno.ENOSPC: "make room, or name another place",
    errno.EISDIR: "name a file",
    errno.ENOTDIR: "name a folder",
}


def of_users(error: BaseException) -> list[TracebackType]:
    """Give the places of a traceback that are in files of a user, outermost first."""
    return [tb for tb in _places(error.__traceback__) if _is_users(tb.tb_frame.f_code.co_filename)]


def _places(tb: TracebackType | None) -> Iterator[TracebackType]:
    while tb is not None:
        yield tb
        tb = tb.tb_next


def _is_users(file: str) -> bool:
    return not file.startswith("<") and not str(Path(file).resolve()).startswith(_OTHERS)


def line_of(error: BaseException) -> str | None:
    """Name the innermost line of a user that an error comes from; None where there is none."""
    if isinstance(error, SyntaxError) and error.filename and _is_users(error.filename):
        return f"{error.filename}, line {error.lineno}"
    places = of_users(error)
    return f"{places[-1].tb_frame.f_code.co_filename}, line {places[-1].tb_lineno}" if places else None


def print_users_part(error: BaseException) -> None:
    """Print a traceback to stderr from the user's first line on."""
    places = of_users(error)
    traceback.print_exception(type(error), error, places[0] if places else None, file=sys.stderr)


def in_words(error: OSError) -> InputError | None:
    """Say in a sentence what the system refused; None where it names no file."""
    if error.filename is None or error.errno is None:
        return None
    return InputError((error.strerror or str(error)).lower(), where=str(error.filename), fix=_FIXES.get(error.errno))
