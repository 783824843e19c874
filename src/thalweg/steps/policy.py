"""What to do with an item that cannot be used: fail, skip and count, or quarantine; within a budget.

Decides when a rank has seen too many bad items, and what is written of each. Knows no format and no step.
"""

from __future__ import annotations

import logging
import math
import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from thalweg.core.errors import BudgetError, ConfigError, SampleError, ThalwegError
from thalweg.steps.folder import FolderLike, OutputFolder

if TYPE_CHECKING:
    from thalweg.core.stats import StepStats

OnError: TypeAlias = Literal["fail", "skip", "quarantine"]
log = logging.getLogger("thalweg.steps")


@dataclass
class ErrorPolicy:
    """The policy of one step on one rank.

    Args:
        on_error: "fail" raises at the first bad item; "skip" counts it as dropped, under its reason; "quarantine"
            also writes a line of JSON about it.
        max_bad: how many bad items are too many: a share of the items seen (float below 1; one item is always
            allowed), or a count (int). Ignored by "fail".
        quarantine: folder of the quarantine files, one a rank; required by "quarantine".
    """

    on_error: OnError = "skip"
    max_bad: float = 0.01
    quarantine: FolderLike | None = None
    folder: OutputFolder | None = field(init=False, default=None)
    bad: int = field(init=False, default=0)
    _file: Any = field(init=False, default=None, repr=False)
    _last: tuple[str, str, BaseException | None] = field(init=False, default=("", "", None), repr=False)

    def __post_init__(self) -> None:
        """Refuse settings that contradict each other."""
        if self.on_error not in {"fail", "skip", "quarantine"}:
            raise ConfigError(f"on_error={self.on_error!r} is unknown", fix="say 'fail', 'skip' or 'quarantine'")
        if (self.on_error == "quarantine") != (self.quarantine is not None):
            raise ConfigError(
                f"on_error={self.on_error!r} and quarantine={self.quarantine!r} do not go together",
                fix="give quarantine='a/folder' together with on_error='quarantine'",
            )
        if self.quarantine is not None:
            self.folder = OutputFolder.of(self.quarantine)

    def take(
        self, stats: StepStats, rank: int, *, reason: str, where: str, seen: int, error: BaseException | None,
        item: Any = None,
    ) -> None:  # fmt: skip
        """Deal with one bad item.

        Args:
            stats: the step's books.
            rank: names the quarantine file.
            reason: short and the same for all items of its kind; counted.
            where: file and row, or id.
            seen: items that the step has looked at so far on this rank.
            error: what was raised, if anything was.
            item: the item or its bytes, for the quarantine.

        Raises:
            SampleError: the policy is "fail"; the original error is its cause.
            BudgetError: more bad items than `max_bad` allows.
        """
        if self.on_error == "fail":
            what = f"{reason}: {_what(error)}" if error else reason
            raise SampleError(what, where=where, fix=getattr(error, "fix", None) or _ADVICE) from error
        self.bad += 1
        self._last = (reason, where, error)
        if self.on_error == "quarantine":
            stats.tally.quarantined += 1
            stats[f"quarantined_{reason}"].update(1)
            self._write(rank, {"reason": reason, "where": where, **_tell(error), "item": _show(item)})
        else:
            stats.tally.drop(reason)
        if self.bad <= 10 or (self.bad & (self.bad - 1)) == 0:
            log.warning("%s: %s at %s (bad items so far on this rank: %d)", reason, _what(error), where, self.bad)
        self._check(seen)

    def _check(self, seen: int) -> None:
        if isinstance(self.max_bad, int):
            limit, shown = self.max_bad, f"max_bad={self.max_bad}"
        else:
            limit, shown = math.ceil(self.max_bad * max(seen, 1000)), f"max_bad={self.max_bad:.2%}"
        if self.bad > limit:
            self.close()
            raise self._spent(seen, shown)

    def settle(self, seen: int) -> None:
        """Compare with the budget once more, at the end of the rank, and close the quarantine file.

        Raises:
            BudgetError: more bad items than the share allows.
        """
        self.close()
        if self.bad and not isinstance(self.max_bad, int) and self.bad > max(1, math.ceil(self.max_bad * seen)):
            raise self._spent(seen, f"{self.max_bad:.2%}")

    def _spent(self, seen: int, allowed: str) -> BudgetError:
        reason, where, error = self._last
        last = f"; the last: {reason}" + (f", {_what(error)}" if error else "")
        advice = getattr(error, "fix", None) or "look at the first warnings above"
        return BudgetError(
            f"{self.bad} of {seen} items are bad ({self.bad / max(seen, 1):.2%}), allowed is {allowed}{last}",
            where=where,
            fix=f"{advice}; raise max_bad if the loss is acceptable",
        )

    def _write(self, rank: int, row: dict[str, Any]) -> None:
        assert self.folder is not None
        if self._file is None:
            self._file = self.folder.create(f"{rank:05d}.jsonl")
        self._file.write(msgspec.json.encode(row) + b"\n")

    def close(self) -> None:
        """Finish the quarantine file."""
        if self._file is not None:
            self._file.close()
            self._file = None


_ADVICE = "repair the item, or let it go with on_error='skip' or 'quarantine'"


def _what(error: BaseException | None) -> str:
    return error.what if isinstance(error, ThalwegError) else str(error)


def _tell(error: BaseException | None) -> dict[str, str]:
    if error is None:
        return {"error": "", "traceback": ""}
    text = "".join(traceback.format_exception(error))
    return {"error": _clean(f"{type(error).__name__}: {error}"), "traceback": _clean(text)}


def _show(item: Any) -> str:
    if isinstance(item, bytes | bytearray | memoryview):
        return bytes(item).decode("utf-8", "backslashreplace")
    return _clean(item if isinstance(item, str) else repr(item))


def _clean(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
