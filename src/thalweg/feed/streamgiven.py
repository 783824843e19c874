"""How many samples of each source of a stream were handed over: exact at every step, whatever holds samples on the way.

Decides what is counted, for each sub-stream and source: samples of the newest epoch of the source's own of which one
came; a document whose pieces stand in several rows counts with its first. A window behind a mix may hand over samples
of the epoch before a while longer: they are counted no more. Knows no row, step or rank.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from thalweg.feed import stages as st
from thalweg.feed.events import SourceEpoch
from thalweg.feed.feed import Feed

Counts = dict[str, tuple[int, int]]  # source -> (epoch of its own, samples of it)


@dataclass(frozen=True, slots=True)
class Given:
    """What one sub-stream handed over.

    Args:
        epoch: of the feed, that of the last sample.
        counts: of each source that gave a sample yet.
        before: the same where that epoch began.
    """

    epoch: int = 0
    counts: Counts = field(default_factory=Counts)
    before: Counts = field(default_factory=Counts)

    def where_began(self, epoch: int) -> "Given":
        """Give what was handed over where an epoch of the feed began that is gone back to."""
        if epoch > self.epoch:
            return self
        return Given(epoch, self.before, self.before) if epoch == self.epoch else Given(epoch)

    def written(self) -> list[Any]:
        """Write it as plain data."""
        return [self.epoch, self.counts, self.before]

    @classmethod
    def of(cls, data: Any) -> "Given":
        """Read what `written` gave."""
        epoch, *counts = data
        return cls(int(epoch), *({name: (int(e), int(n)) for name, (e, n) in one.items()} for one in counts))


def counted(given: Mapping[int, Given], epoch: int, came: Mapping[SourceEpoch, int]) -> dict[int, Given]:
    """Give what was handed over with samples of an epoch of the feed that came behind: how many of each source."""
    out, changed = dict(given), set[int]()
    for source, n in came.items():
        sub = source.sub
        now = out[sub]
        if epoch > now.epoch:
            out[sub] = now = Given(epoch, dict(now.counts), now.counts)
        elif sub not in changed:
            out[sub] = now = Given(epoch, dict(now.counts), now.before)
        changed.add(sub)
        own, samples = now.counts.get(source.name, (-1, 0))
        if source.epoch >= own:
            now.counts[source.name] = (source.epoch, samples * (source.epoch == own) + n)
    return out


def names_of(feed: Feed, name: str = "") -> list[str]:
    """Name the sources of a feed as its batches do: those of a concat in a mix with both names, "code/python"."""
    head = feed.stages[0]
    if not isinstance(head, st.Concat | st.Mix):
        return [name]
    return [leaf for own, part in head.feeds for leaf in names_of(part, f"{name}/{own}" if name else own)]


def together(parts: Iterable[Mapping[str, Any]], names: Iterable[str]) -> Counts:
    """Put sub-streams or ranks together: of each source the newest epoch, and the samples of all that stand in it."""
    found = list(parts)
    out = {}
    for name in names:
        places = [part[name] for part in found if name in part]
        last = max((int(epoch) for epoch, _ in places), default=0)
        out[name] = (last, sum(int(n) for epoch, n in places if epoch == last))
    return out
