"""The errors of thalweg: what happened, where, what to try, and a stable code.

Decides the shape of every message. Knows no part of the system that raises one.
"""

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterable


class ThalwegError(Exception):
    """Base of all errors that thalweg raises on purpose.

    Args:
        what: what happened, one sentence without a full stop at its end.
        where: file, line, sample, stage or key; None where there is no place.
        fix: what to try, an imperative.

    The message is "CODE what [where]. Try: fix". Pickles with all its fields.
    """

    code: ClassVar[str] = "TW000"

    def __init__(self, what: str, *, where: str | None = None, fix: str | None = None) -> None:
        super().__init__(what)
        self.what, self.where, self.fix = what, where, fix

    def __str__(self) -> str:
        """Compose the message from its parts."""
        where = f" [{self.where}]" if self.where else ""
        fix = f". Try: {self.fix}" if self.fix else ""
        return f"{self.code} {self.what}{where}{fix}"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by parts, so that an error survives the way out of a worker process."""
        return (_rebuild, (type(self), self.what, self.where, self.fix), self.__dict__)


def _rebuild(cls: type[ThalwegError], what: str, where: str | None, fix: str | None) -> ThalwegError:
    return cls(what, where=where, fix=fix)


class ConfigError(ThalwegError, ValueError):
    """An argument, setting or combination of stages that cannot be right."""

    code = "TW100"


class MissingExtraError(ThalwegError, ImportError):
    """A library of an optional extra is not installed; the fix is its pip command."""

    code = "TW110"


class InputError(ThalwegError, ValueError):
    """Input that is missing, empty or not what it claims to be."""

    code = "TW200"


class RecordsError(ThalwegError, ValueError):
    """A record set that is unfinished, mixed up, or used against its schema."""

    code = "TW300"


class IntegrityError(RecordsError):
    """Bytes at rest that are not the bytes that were written: file and offset are named."""

    code = "TW310"


class SampleError(ThalwegError, ValueError):
    """One sample that cannot be used; the sample is named and the others are unharmed."""

    code = "TW400"


class BudgetError(ThalwegError, RuntimeError):
    """More bad samples than the budget allows: n of m, the rate and the limit are named."""

    code = "TW410"


class WorkerError(ThalwegError, RuntimeError):
    """User code failed in a worker in a way that cannot travel as itself, or the worker died."""

    code = "TW500"


class StalledError(ThalwegError, RuntimeError):
    """Nothing moved for too long; the stages that wait and the stacks of workers are attached."""

    code = "TW510"


class StateError(ThalwegError, ValueError):
    """A state that belongs to another feed, another kind of node or a newer version."""

    code = "TW600"


class AgreementError(ThalwegError, RuntimeError):
    """Ranks of one job that differ in feed, seed or place: two ranks and both values are named."""

    code = "TW610"


class RunError(ThalwegError, RuntimeError):
    """An offline run that failed, is refused, or contradicts its logging directory."""

    code = "TW700"


def nearest(word: str, choices: "Iterable[str]") -> str:
    """Say which known word is meant: "did you mean 'x'?" or a list of all choices."""
    known = sorted(map(str, choices))
    if not known:
        return "name one that is there: there is none yet"
    close = get_close_matches(word, known, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else "one of " + ", ".join(map(repr, known))
