"""Looks into a feed: in this process, without workers, moving nothing.

Decides what an item is at each stage: a raw sample at the source, a sample behind `map`, a row behind `pack`, a
batch behind `batch`. Breakpoints in user code work here.
"""

from collections.abc import Iterator
from importlib import import_module
from itertools import islice
from typing import Any

from thalweg.core.errors import ConfigError, nearest
from thalweg.core.sample import Sample
from thalweg.feed import stages as st
from thalweg.feed.batch import Collator
from thalweg.feed.compile import Compiled, compile_feed
from thalweg.feed.feed import Feed
from thalweg.feed.gather import Documents, Reader, select
from thalweg.feed.node import RunOptions
from thalweg.feed.planned import PlannedNode


def count_rows(feed: Feed) -> int:
    """Count the rows of the first epoch.

    Raises:
        ConfigError: the feed is a stream.
    """
    return compile_feed(feed).order.rows(0)


def up_to(feed: Feed, after: str | None) -> Feed:
    """Give the feed as far as the last stage of a verb; "source" is its first stage alone.

    Raises:
        ConfigError: no stage has that verb.
    """
    if after is None:
        return feed
    if after == "source":
        return Feed(feed.stages[:1])
    at = [i for i, stage in enumerate(feed.stages) if stage.verb == after]
    if not at:
        verbs = [stage.verb for stage in feed.stages[1:]]
        raise ConfigError(f"no stage {after!r} in this feed", where="peek", fix=nearest(after, ["source", *verbs]))
    return Feed(feed.stages[: at[-1] + 1])


def peek(feed: Feed, n: int = 1, after: str | None = None) -> list[Any]:
    """Give the first n items behind a stage."""
    return list(islice(walk(up_to(feed, after)), n))


def at(feed: Feed, i: int) -> Any:
    """Give item i of the first epoch.

    Raises:
        IndexError: there are fewer items.
    """
    if i < 0:
        raise IndexError(f"item {i}: items count from 0")
    for item in _items(feed, i):
        return item
    raise IndexError(f"item {i}: there are fewer")


def walk(feed: Feed) -> Iterator[Any]:
    """Give all items of the first epoch."""
    return _items(feed, 0)


def _items(feed: Feed, start: int) -> Iterator[Any]:
    if feed.kind != "planned":
        yield from islice(import_module("thalweg.feed.streamlook").walk(feed), start, None)
        return
    compiled = compile_feed(feed)
    if compiled.batch is not None:
        yield from _batches(compiled, start)
        return
    reader = Reader(compiled.leaves, 0, as_samples=compiled.pack is None)
    collator = Collator(st.Batch(1), compiled.pack, reader, {}, compiled.row_maps)
    row, found = start, False
    for block in range(compiled.order.num_blocks(0)):
        rows = compiled.order.num_rows(0, block)
        while row < rows:
            found = True
            one = reader.read(select([(compiled.order.block(0, block), row, row + 1)]))
            yield _item(reader, collator, one)
            row += 1
        row -= rows
    if not found and start:
        raise IndexError(f"item {start} of {compiled.order.rows(0)}")


def _item(reader: Reader, collator: Collator, one: Documents) -> Sample | None:
    """Give a row as a dict of arrays, a sample as it is (None where its function failed or dropped it)."""
    if collator.pack is not None:
        return collator.row_samples(one)[0]
    samples = reader.samples(one)
    return samples[0] if samples else None


def _batches(compiled: Compiled, start: int) -> Iterator[Any]:
    node = PlannedNode(compiled, RunOptions(tail="pad", workers=0))
    try:
        total = node.count()
        if start >= total and start:
            raise IndexError(f"batch {start} of {total}")
        node.begin()
        yield from islice(node, start, None)
    finally:
        node.close()
