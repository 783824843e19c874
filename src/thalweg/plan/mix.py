"""Which source comes at which position of a mixture, in closed form.

Decides the interleave of SEMANTICS 2.2: exact at any position, a count within 2 + ln(sources) of its share
everywhere. Rates are exact integers; only counts and positions go in and out. Knows no sample and no epoch.
"""

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from math import lcm, log

import numpy as np
from numpy.typing import NDArray

PHASE = 32  # bits of a phase
EXACT = 1 << 62  # products of rates and positions below this are divided in 64-bit integers
NEAR = 1e-9  # floats closer than this to an integer are decided by exact arithmetic


def integer_rates(rates: Sequence[Fraction]) -> list[int]:
    """Bring rates to their smallest common integers."""
    common = lcm(*(r.denominator for r in rates)) if rates else 1
    return [int(r * common) for r in rates]


class Interleave:
    """Positions 0, 1, 2, ... dealt to sources.

    Args:
        rates: exact, at least 0, at least one above 0.
        phases: each source's start in units of 2**-32, 0 <= phase < 2**32.

    Sources are walked by falling rate. Among `rest` positions, source s gets floor(rest * r_s / T_s + u_s), T_s the
    sum of the rates from s on; the last live source takes what is left.
    """

    __slots__ = ("live", "phases", "rates", "sums")

    def __init__(self, rates: Sequence[Fraction], phases: Sequence[int]) -> None:
        self.rates = integer_rates(rates)
        self.phases = list(phases)
        self.live = sorted((s for s, r in enumerate(self.rates) if r), key=lambda s: (-self.rates[s], s))
        left, self.sums = sum(self.rates), dict[int, int]()
        for s in self.live:
            self.sums[s] = left
            left -= self.rates[s]

    def counts(self, position: int) -> list[int]:
        """Count the draws of each source among the first `position` positions."""
        out, rest = [0] * len(self.rates), position
        for s in self.live:
            out[s] = self._taken(s, rest)
            rest -= out[s]
        return out

    def _taken(self, s: int, rest: int) -> int:
        total = self.sums[s]
        if self.rates[s] == total:
            return rest
        return ((rest * self.rates[s] << PHASE) + self.phases[s] * total) // (total << PHASE)

    def carried(self, position: int) -> list[int]:
        """Give the phases after `position` positions, so that errors do not add up over changes of the rates."""
        out, rest = list(self.phases), position
        for s in self.live:
            total, count = self.sums[s], self._taken(s, rest)
            if self.rates[s] < total:
                out[s] = (rest * self.rates[s] << PHASE) // total + self.phases[s] - (count << PHASE)
            rest -= count
        return out

    def at(self, position: int) -> tuple[int, int]:
        """Give (source, its draw) at a position."""
        rest = position
        for s in self.live:
            count = self._taken(s, rest)
            if self._taken(s, rest + 1) > count:
                return s, count
            rest -= count
        raise AssertionError  # the last live source takes the rest

    def span(self, start: int, stop: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Give (source, its draw) at positions start to stop: int32 (n,), int64 (n,). Exact at any start."""
        source, draw = np.empty(stop - start, np.int32), np.empty(stop - start, np.int64)
        for s, places, first in self.parts(start, stop):
            source[places] = s
            draw[places] = np.arange(first, first + len(places))
        return source, draw

    def parts(self, start: int, stop: int) -> Iterator[tuple[int, NDArray[np.int32], int]]:
        """Give the positions start to stop by source: (source, its places from 0 on, rising, draw at the first)."""
        place, rest = np.arange(stop - start, dtype=np.int32), start
        for s in self.live:
            first = self._taken(s, rest)
            if self.rates[s] == self.sums[s]:
                yield s, place, first
            else:
                at = self._growing(s, rest, len(place))
                yield s, place[at], first
                stays = np.ones(len(place), np.bool_)
                stays[at] = False
                place = place[np.flatnonzero(stays)]
            rest -= first

    def _growing(self, s: int, rest: int, n: int) -> NDArray[np.intp]:
        """Say at which of the next n positions the count of s grows, rising; a count grows by one at most."""
        rate, total = self.rates[s], self.sums[s]
        # floor((rest * r + u * T) / T) for rest + d, less the count at rest: floor((ahead + d * r) / T), exactly.
        # It reaches k where d is (k * T - ahead) / r, rounded up.
        ahead = (((rest * rate << PHASE) + self.phases[s] * total) % (total << PHASE)) >> PHASE
        k = np.arange(1, (ahead + n * rate) // total + 1)
        if n * rate + total < EXACT:
            exact: NDArray[np.intp] = -((ahead - k * total) // rate) - 1
            return exact
        real = (total - ahead) / rate + (k - 1) * (total / rate)
        reached = np.ceil(real)
        near = np.abs(real - np.rint(real)) < max(NEAR, n * 2.0**-51)  # three roundings of numbers up to n
        for i in np.flatnonzero(near).tolist():
            reached[i] = -((ahead - (i + 1) * total) // rate)
        grows: NDArray[np.intp] = reached.astype(np.intp) - 1
        return grows

    def first(self, test: Callable[[list[int]], bool], need: Sequence[int], *, every: bool) -> int | None:
        """Find the smallest position at which a monotone test of the counts holds.

        Args:
            test: counts -> bool, False then True.
            need: draws of each source that the test waits for; says where to look.
            every: the test waits for all of them (else for the first).

        Returns:
            None where a source without a rate is waited for and `every` is set.
        """
        if test(self.counts(0)):
            return 0
        total, slack = sum(self.rates), 3 + log(max(len(self.live), 1))
        if every and any(n > 0 and not self.rates[s] for s, n in enumerate(need)):
            return None
        pick = max if every else min
        guess = pick((Fraction(need[s] * total, self.rates[s]), Fraction(total, self.rates[s])) for s in self.live)
        low = max(0, int(guess[0] - Fraction(slack) * guess[1]))
        high = int(guess[0] + Fraction(slack) * guess[1]) + 1
        while test(self.counts(low)):  # a lighter source may have a wider bound: widen until the ends disagree
            low = max(0, low - 2 * (high - low))
        while not test(self.counts(high)):
            high += 2 * (high - low)
        while high - low > 1:
            middle = (low + high) // 2
            if test(self.counts(middle)):
                high = middle
            else:
                low = middle
        return high
