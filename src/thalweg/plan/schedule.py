"""Which draws an epoch of a mixture has: segments between changes of the weights and the ends of sources.

Decides SEMANTICS 2.3 and 2.4: where a schedule's breakpoint falls, when a source is used up, where an epoch ends,
and how draws go on over epochs. A plain feed is a schedule of one source. Knows no lengths but the exact mean.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from thalweg.core.errors import ConfigError
from thalweg.core.seeds import Key, generator
from thalweg.plan.mix import PHASE, Interleave

Entry = tuple[int, tuple[Fraction, ...]]


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of an epoch with constant rates.

    Args:
        start: position in the epoch.
        length: positions.
        mix: what comes at each, counted from the segment's start.
        before: draws of each source before it, over the whole run.
        entry: entry of the schedule.
    """

    start: int
    length: int
    mix: Interleave
    before: tuple[int, ...]
    entry: int


@dataclass(frozen=True, slots=True)
class Mark:
    """Where an epoch begins: on the schedule's scale, and the draws of each source before it."""

    at: Fraction
    draws: tuple[int, ...]


class Schedule:
    """Segments of any epoch.

    Args:
        names: of the sources.
        sizes: samples delivered in a source epoch.
        means: exact mean lengths; needed where `by` or `at` is "tokens".
        entries: (breakpoint, weight of each source), rising from 0. None: one source, all of it, once.
        repeats: source epochs until a source is used up.
        by: "samples" | "tokens": what the weights are shares of.
        at: "samples" | "tokens": what breakpoints count.
        rule: "stop_first" | "stop_all" | "repeat" | "without_repeat".
        seed: of the phases.
        changes: (epoch, draws of the epoch before it, weights): what replaces all entries from there on, in order.

    Raises:
        ConfigError: a source with a weight has no sample to deliver; it is named.
    """

    def __init__(
        self,
        names: Sequence[str],
        sizes: Sequence[int],
        *,
        entries: Sequence[Entry] | None = None,
        means: Sequence[Fraction] = (),
        repeats: Sequence[int] | None = None,
        by: str = "samples",
        at: str = "samples",
        rule: str = "stop_first",
        seed: Key = 0,
        changes: Sequence[tuple[int, int, tuple[Fraction, ...]]] = (),
    ) -> None:
        if entries is None:
            entries, rule = [(0, tuple(Fraction(1) for _ in sizes))], "without_repeat"
        else:
            _refuse_empty(names, sizes, entries)
        _refuse_empty(names, sizes, [(at, weights) for _, at, weights in changes])
        self.entries = [(Fraction(start), weights) for start, weights in entries]
        self.changes = list(changes)
        self.limits = [n * m for n, m in zip(sizes, repeats or [1] * len(sizes), strict=True)]
        self.means = list(means) or [Fraction(1)] * len(sizes)
        self.by, self.at, self.rule = by, at, rule
        self.phases = [int(generator(seed, "phase", name).integers(1 << PHASE)) for name in names]
        self._marks = [Mark(Fraction(0), (0,) * len(sizes))]
        self._epochs: dict[int, list[Segment]] = {}

    def mark(self, epoch: int) -> Mark:
        """Say where an epoch begins."""
        last = self.entries[-1][0]
        changed = max((e for e, _, _ in self.changes), default=-1)
        while len(self._marks) <= epoch and not (
            len(self._marks) - 2 > changed and len(self._marks) > 1 and self._marks[-2].at >= last
        ):
            self._plan(len(self._marks) - 1)
        if epoch < len(self._marks):
            return self._marks[epoch]
        # behind the last breakpoint every epoch is like the one before it, further on
        more = epoch - len(self._marks) + 1
        old, new = self._marks[-2], self._marks[-1]
        draws = tuple(d + more * (d - b) for b, d in zip(old.draws, new.draws, strict=True))
        return Mark(new.at + more * (new.at - old.at), draws)

    def segments(self, epoch: int) -> list[Segment]:
        """Give the segments of an epoch, in order; none where it has no draw."""
        if epoch not in self._epochs:
            if len(self._epochs) > 8:
                self._epochs.clear()
            self._epochs[epoch] = self._plan(epoch)
        return self._epochs[epoch]

    def _plan(self, epoch: int) -> list[Segment]:
        mark = self.mark(epoch) if epoch else self._marks[0]
        x, out, start = mark.at, list[Segment](), 0
        done, phases = [0] * len(self.limits), self.phases
        while True:
            entry, until = self._entry(epoch, start, x)
            rates = self._rates(entry, done)
            if not any(rates):  # nothing is left that has a weight
                break
            mix = Interleave(rates, phases)
            unit = Fraction(1)
            if self.at == "tokens":
                unit = sum((r * m for r, m in zip(rates, self.means, strict=True)), Fraction(0)) / sum(rates)
            cut = ceil((self.entries[entry + 1][0] - x) / unit) if entry + 1 < len(self.entries) else None
            cut = until if cut is None or (until is not None and until < cut) else cut
            end = self._end(mix, done, self._weighed(epoch, start, entry))
            stop = self.rule != "without_repeat" and end is not None and (cut is None or end <= cut)
            length = min(v for v in (cut, end) if v is not None)
            before = tuple(b + d for b, d in zip(mark.draws, done, strict=True))
            if length:
                out.append(Segment(start, length, mix, before, entry))
            done = [d + k for d, k in zip(done, mix.counts(length), strict=True)]
            phases = mix.carried(length)
            x, start = x + length * unit, start + length
            if stop:
                break
        if len(self._marks) == epoch + 1:
            self._marks.append(Mark(x, tuple(b + d for b, d in zip(mark.draws, done, strict=True))))
        return out

    def _entry(self, epoch: int, start: int, x: Fraction) -> tuple[int, int | None]:
        """Give the entry in force at a position, changes counted behind the entries; draws until the next change."""
        past = [i for i, (e, at, _) in enumerate(self.changes) if (e, at) <= (epoch, start)]
        coming = [at - start for e, at, _ in self.changes if e == epoch and at > start]
        until = min(coming, default=None)
        if past:
            return len(self.entries) + past[-1], until
        return bisect_right([begin for begin, _ in self.entries], x) - 1, until

    def _rates(self, entry: int, done: Sequence[int]) -> list[Fraction]:
        known = len(self.entries)
        rates = list(self.entries[entry][1] if entry < known else self.changes[entry - known][2])
        if self.by == "tokens":
            rates = [r / m if m else Fraction(0) for r, m in zip(rates, self.means, strict=True)]
        if self.rule == "without_repeat":
            rates = [r if d < n else Fraction(0) for r, d, n in zip(rates, done, self.limits, strict=True)]
        return rates

    def _weighed(self, epoch: int, start: int, entry: int) -> list[bool]:
        """Say which sources have a weight in the entry in force or may get one in this epoch: none waits for others."""
        known = len(self.entries)
        rows = [w for _, w in self.entries[entry:]] if entry < known else [self.changes[entry - known][2]]
        rows += [w for e, at, w in self.changes if e == epoch and at > start]
        return [any(weights) for weights in zip(*rows, strict=True)]

    def _end(self, mix: Interleave, done: Sequence[int], weighed: Sequence[bool]) -> int | None:
        need = [max(n - d, 0) if w else 0 for n, d, w in zip(self.limits, done, weighed, strict=True)]
        if self.rule in {"stop_first", "without_repeat"}:
            live = mix.live

            def used_up(counts: list[int]) -> bool:
                return any(counts[s] >= need[s] for s in live)

            return mix.first(used_up, need, every=False)

        def seen(counts: list[int]) -> bool:
            return all(c >= n for c, n in zip(counts, need, strict=True))

        return mix.first(seen, need, every=True)


def _refuse_empty(names: Sequence[str], sizes: Sequence[int], entries: Sequence[Entry]) -> None:
    empty = [name for s, name in enumerate(names) if not sizes[s] and any(w[s] for _, w in entries)]
    if empty:
        raise ConfigError(
            f"source {empty[0]!r} has a weight and no sample to deliver"
            + (f", and {len(empty) - 1} more" * (len(empty) > 1)),
            where="mix",
            fix="leave it out, or look at its filter and at overlong=",
        )
