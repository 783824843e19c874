"""Credentials in a pipeline: which values are some, and where they are found before a pipeline is written to a file.

Decides that by names (of options, attributes and variables) and by the shape of well-known keys. Writes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from thalweg.core.errors import ConfigError
from thalweg.core.uses import MOST, uses
from thalweg.steps.folder import Folder

if TYPE_CHECKING:
    from types import FunctionType

HIDDEN = "<not written>"
_DEPTH = 12
# in the options of a file system
_OPTION = re.compile(r"key|token|username|headers|account_key|sas_token|connection_string|authorization", re.IGNORECASE)
# anywhere: `eos_token` and its like are none
_ANYWHERE = re.compile(
    r"(.*_)?(secret(s|_key)?|secret_access_key|access_key(_id)?|api_key|password|passwd|credentials?)"
    r"|((hf|api|auth|access|session|bearer|aws_session|github|security)_)?token",
    re.IGNORECASE,
)
_SHAPE = re.compile(r"hf_\w{30,}|A(KI|SI)A[A-Z0-9]{16}|sk-[\w-]{20,}|gh[pousr]_\w{30,}|xox[abp]-[\w-]{20,}")
_USER_IN_URL = re.compile(r"(\w+://)[^/@\s:]+:[^/@\s]+@")


def is_credential(name: str, value: Any) -> bool:
    """Say whether a named value is one: text under a telling name. Text in the shape of a key needs no name."""
    if not isinstance(value, str | bytes) or not value:
        return False
    return bool(_ANYWHERE.fullmatch(name)) or (isinstance(value, str) and bool(_SHAPE.fullmatch(value)))


def masked(text: str) -> str:
    """Take user and password out of URLs, and keys by their shape out of any text."""
    return _SHAPE.sub(HIDDEN, _USER_IN_URL.sub(rf"\1{HIDDEN}@", text))


def is_place(value: Any) -> bool:
    """Say whether a value is (URL, options of the file system)."""
    if not isinstance(value, tuple | list) or len(value) != 2:
        return False
    url, options = value
    return isinstance(url, str) and "://" in url and isinstance(options, Mapping)


def in_options(options: Any, path: str = "") -> Iterator[str]:
    """Name the options of a file system that hold credentials, nested ones as "client_kwargs.password"."""
    if not isinstance(options, Mapping):
        return
    for name, value in options.items():
        full = f"{path}{name}"
        if isinstance(value, Mapping) and not _OPTION.fullmatch(str(name)):
            yield from in_options(value, f"{full}.")
        elif value and (_OPTION.fullmatch(str(name)) or is_credential(str(name), value)):
            yield full


def refuse_credentials(fix: str, *things: Any) -> None:
    """Refuse a pipeline whose folders, at any depth, hold credentials in their options.

    Args:
        fix: what to do instead.
        *things: steps, folders, or (URL, options) pairs.

    Raises:
        ConfigError: there are some; place and names are told, never a value.
    """
    for place, names in chain.from_iterable(_walk(thing, "", set(), 0) for thing in things):
        raise ConfigError(
            f"options of a folder may hold credentials ({', '.join(sorted(names))}), and this launch would write them "
            "to a file",
            where=masked(place),
            fix=fix,
        )


def _walk(value: Any, place: str, seen: set[int], depth: int) -> Iterator[tuple[str, list[str]]]:
    if value is None or isinstance(value, str | bytes | int | float) or depth > _DEPTH or id(value) in seen:
        return
    seen.add(id(value))
    if is_place(value):
        yield from _found(str(value[0]), value[1])
    elif isinstance(value, Folder):
        yield from _found(value.path, value.options)
        yield from _walk(value.fs, value.path, seen, depth + 1)
    elif isinstance(value, Mapping):
        items: Mapping[Any, Any] = value
        for inner in [*items.values()] if len(items) <= MOST else ():
            yield from _walk(inner, place, seen, depth + 1)
    elif isinstance(value, Sequence | set | frozenset):
        for inner in list(value)[:MOST]:
            yield from _walk(inner, place, seen, depth + 1)
    elif hasattr(value, "storage_options"):  # a file system, or a folder of another library that is one
        yield from _found(str(getattr(value, "path", place)), value.storage_options)
        yield from _walk(getattr(value, "fs", None), str(getattr(value, "path", place)), seen, depth + 1)
    else:
        for inner in _inside(value):
            yield from _walk(inner, place, seen, depth + 1)


def _found(path: str, options: Any) -> Iterator[tuple[str, list[str]]]:
    if names := list(in_options(options)):
        yield path, names


def _inside(value: Any) -> Iterator[Any]:
    function: FunctionType | None = getattr(value, "__func__", value if hasattr(value, "__code__") else None)
    if function is not None:
        for cell in function.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # not filled yet
                continue
        yield from uses(function)[0].values()
        yield from function.__defaults__ or ()
        yield getattr(value, "__self__", None)
    elif not isinstance(value, type):
        yield from getattr(value, "__dict__", {}).values()
