"""Looks into a stream: in this process, without workers, moving nothing.

Decides what an item is behind each stage, as `feed.look` does for a plan: a raw sample, a sample behind `map`, a row
behind `pack`, a batch behind `batch`. Breakpoints in user code work here.
"""

from collections.abc import Iterator
from typing import Any

from thalweg.core.errors import ConfigError
from thalweg.feed import stages as st
from thalweg.feed.events import FAIL, ITEM, KIND, VALUE
from thalweg.feed.feed import Feed
from thalweg.feed.node import RunOptions
from thalweg.feed.stream import StreamNode
from thalweg.feed.streambatch import StreamBatcher
from thalweg.feed.streamchain import build


def walk(feed: Feed) -> Iterator[Any]:
    """Give the items of the first epoch of a stream, as the last stage gives them.

    Args:
        feed: of kind "stream". The random numbers are those of a loader with seed 0.

    Raises:
        ConfigError: the source can be read only once, so that looking would take its items away.
    """
    _refuse_one_pass(feed)
    options = RunOptions(tail="pad", workers=0)
    if any(isinstance(stage, st.BATCHING) for stage in feed.stages):
        yield from _batches(StreamNode(feed, options))
        return
    chain = build(feed, options, 1)
    chain.node.restore({s: chain.node.first(s) for s in chain.subs})
    rows = StreamBatcher(st.Batch(1), chain.pack, chain.row_maps)
    try:
        for event in chain.node:
            if event[KIND] == FAIL:
                raise event[VALUE]
            if event[KIND] == ITEM:
                yield event[VALUE] if chain.pack is None else rows.row(event[VALUE])
    finally:
        chain.node.close()


def _batches(node: StreamNode) -> Iterator[Any]:
    try:
        node.begin()
        yield from node
    finally:
        node.close()


def _refuse_one_pass(feed: Feed) -> None:
    head = feed.stages[0]
    if isinstance(head, st.Concat | st.Mix):
        for _, part in head.feeds:
            _refuse_one_pass(part)
    if isinstance(head, st.FromStream) and hasattr(head.make, "__next__"):
        raise ConfigError(
            f"this {type(head.make).__name__} can be read only once, and a look would take its items away",
            where="peek",
            fix="give a function that makes it: from_stream(lambda: read(...))",
        )
