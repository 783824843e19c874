"""Whether ranks agree where no process group asks them: each says in a file how it runs, and reads what the others say.

Decides where the files lie (the ledger's folder, else the cache of this machine), who belongs to one start (what the
launcher says) and whose word counts: that of processes that live, which hold a lock. Nothing waits: of two ranks that
differ the one that comes later stops. Knows no feed.
"""

import contextlib
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from thalweg.core.errors import AgreementError
from thalweg.feed import legs
from thalweg.feed.passes import cache_folder

_begun: Counter[tuple[str, int]] = Counter()  # agreements of this process: the k-th of one rank is that of all


def refuse_difference(told: Mapping[int, Mapping[str, str]], rank: int) -> None:
    """Stop where two ranks say different things.

    Args:
        told: rank -> what it says, as words.
        rank: of this process.

    Raises:
        AgreementError: the first difference, with both ranks and both values.
    """
    first, mine = next(iter(told.items()))
    for other, theirs in told.items():
        for key, value in mine.items():
            if theirs.get(key) != value:
                raise AgreementError(
                    f"ranks {first} and {other} differ in {key}: {value} and {theirs.get(key)}",
                    where=f"rank {rank}",
                    fix="give all ranks the same feed, seed, batch, accumulation and state",
                )


class Statement:
    """What a rank says of its run, for the others to read as long as this process lives.

    Args:
        folder: seen by all ranks, or by those of one machine.
        rank: of this process.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self.folder, self.rank = folder / "ranks" / (legs.job() or "job"), rank
        self._file: IO[bytes] | None = None

    def say(self, text: str) -> dict[int, str]:
        """Say it, and give what living ranks say, this one too, in the order of ranks."""
        self.close()
        key = (str(self.folder), self.rank)
        there = self.folder / str(_begun[key])
        _begun[key] += 1
        there.mkdir(parents=True, exist_ok=True)
        path, partial = there / f"{self.rank}.{os.getpid()}", there / f".{self.rank}.{os.getpid()}"
        file = self._file = partial.open("wb")
        legs.hold(file)
        file.write(text.encode())
        file.flush()
        partial.replace(path)
        found: dict[int, str] = {}
        for other in there.glob("[0-9]*.*"):
            with contextlib.suppress(OSError, ValueError):
                with other.open("rb") as read:
                    lives = other == path or legs.locked(read)
                if lives:
                    found[int(other.name.partition(".")[0])] = other.read_text()
                else:
                    other.unlink()  # left by an earlier start
        return dict(sorted(found.items()))

    def close(self) -> None:
        """Take the word back. Twice is fine."""
        if self._file is None:
            return
        name = Path(self._file.name)
        self._file.close()
        self._file = None
        with contextlib.suppress(OSError):
            name.with_name(name.name.removeprefix(".")).unlink()
            name.parent.rmdir()  # the last one out
            self.folder.rmdir()


def statement_of(rank: int, ledger: Path | None) -> Statement | None:
    """Give what ranks without a process group agree by: files beside the ledger, or where the launcher names the start.

    Args:
        rank: of this process.
        ledger: folder of the ledger; None: there is none.
    """
    if ledger is not None:
        return Statement(ledger, rank)
    return Statement(cache_folder(), rank) if legs.job() else None
