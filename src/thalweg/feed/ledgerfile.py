"""The form of a ledger on disk: what follows from what, and reading it back.

Decides the bytes: nine a row as long as nothing unusual happens. Knows no loader and no plan.

A file is one line of JSON (the leg), then entries: a byte that says its kind, then
  0  the micro-batch that follows from the one before: row digests (uint64 each) only;
  1  step, micro-batch, runs of rows (epoch, index, count), then row digests;
  2  an event: length, JSON;
  3  a micro-batch of a stream, in the form of `feed.ledgerstream`, then row digests.
"""

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.plan.steps import REPEATED, Span

FULL = struct.Struct("<IHHH")  # step, micro, runs, rows
RUN = struct.Struct("<IQHB")  # epoch, first index, rows, repeated
EVENT = struct.Struct("<H")
_END = b'{"event": "closed"}'
CLOSED = b"\x02" + EVENT.pack(len(_END)) + _END  # the last bytes of a file whose run ended in order


@dataclass(frozen=True)
class Run:
    """Consecutive rows of an epoch, on a stream of one of its sub-streams."""

    epoch: int
    index: int
    count: int
    repeated: bool = False
    sub: int = 0


@dataclass(frozen=True, eq=False)
class Entry:
    """A micro-batch as it was handed over: its rows (filler left out) and their digests, uint64."""

    step: int
    micro: int
    runs: tuple[Run, ...]
    digests: NDArray[np.uint64]


def runs_of(spans: tuple[Span, ...]) -> tuple[Run, ...]:
    """Write spans as runs; those that follow each other become one."""
    out: list[Run] = []
    for s in spans:
        n, again = s.stop - s.start, s.mark == REPEATED
        last = out[-1] if out else None
        if last is not None and (last.epoch, last.repeated, last.index + last.count) == (s.epoch, again, s.first):
            out[-1] = Run(last.epoch, last.index, last.count + n, again)
        else:
            out.append(Run(s.epoch, s.first, n, again))
    return tuple(out)


At = tuple[int, int, int, int, int]  # step, micro-batch, epoch, index of its first row, rows: one run, none repeated


def at_of(step: int, micro: int, runs: Sequence[Run]) -> At | None:
    """Say where a micro-batch stands, where it is one run that nothing fills; else None."""
    if len(runs) != 1 or runs[0].repeated:
        return None
    return step, micro, runs[0].epoch, runs[0].index, runs[0].count


class Following:
    """Says where the next micro-batch of a rank stands when nothing unusual happens.

    Args:
        leg: how it runs.
    """

    def __init__(self, leg: Mapping[str, Any]) -> None:
        self._many, self._stride = int(leg.get("accumulation", 1)), int(leg.get("stride") or 0)  # 0 where batches grow
        self._world = int(leg.get("world", 0))

    def __call__(self, at: At) -> At:
        """Give the place behind a place."""
        step, micro, epoch, index, count = at
        index += self._stride or self._world * count
        return (step + 1, 0, epoch, index, count) if micro + 1 == self._many else (step, micro + 1, epoch, index, count)


def read_leg(path: Path) -> tuple[dict[str, Any], list[Entry | dict[str, Any]]]:
    """Read one file: the leg, and its entries and events in order. An entry cut off at the end is left out."""
    data = path.read_bytes()
    end = data.index(b"\n")
    leg: dict[str, Any] = json.loads(data[:end])
    return leg, list(_entries(memoryview(data)[end + 1 :], leg))


def _entries(data: memoryview, leg: dict[str, Any]) -> Iterator[Entry | dict[str, Any]]:
    at, last = 0, None  # the place in the file, and that of the entry before
    from thalweg.feed.ledgerstream import RowCoder  # noqa: PLC0415  (it writes with this module's words)

    coder, following = RowCoder(int(leg.get("accumulation", 1))), Following(leg)
    while at < len(data):
        kind, at = data[at], at + 1
        if kind == 3:
            try:
                step, micro, runs, at = coder.decode(data, at)
            except IndexError:
                return
            rows = sum(run.count for run in runs)
            if at + 8 * rows > len(data):
                return
            yield Entry(step, micro, runs, np.frombuffer(data[at : at + 8 * rows], np.uint64))
            at += 8 * rows
            continue
        if kind == 2:
            if at + EVENT.size > len(data):
                return
            (size,) = EVENT.unpack_from(data, at)
            at += EVENT.size + size
            if at > len(data):
                return
            last = None
            coder.reset()
            yield json.loads(bytes(data[at - size : at]))
            continue
        if kind == 0:
            assert last is not None
            last = following(last)
            step, micro, epoch, index, rows = last
            runs = (Run(epoch, index, rows),)
        else:
            if at + FULL.size > len(data):
                return
            step, micro, count, rows = FULL.unpack_from(data, at)
            at += FULL.size
            if at + count * RUN.size > len(data):
                return
            runs = tuple(
                Run(e, i, n, bool(again))
                for e, i, n, again in (RUN.unpack_from(data, at + k * RUN.size) for k in range(count))
            )
            at += count * RUN.size
        if at + 8 * rows > len(data):
            return
        last = at_of(step, micro, runs)
        yield Entry(step, micro, runs, np.frombuffer(data[at : at + 8 * rows], np.uint64))
        at += 8 * rows
