"""One call of a user's function on one event: what it is given, and what its result means.

Decides what travels to a worker: the function, the seed and the words for an error, never a node. The merging of
columns is that of `feed.merge`.
"""

from collections.abc import Iterator
from dataclasses import replace
from types import GeneratorType
from typing import Any, Protocol

from thalweg.core.sample import Sample
from thalweg.feed import stages as st
from thalweg.feed.events import EPOCH, ID, SOURCE, VALUE, Event
from thalweg.feed.merge import SampleInfo, call, call_batched, merged
from thalweg.work.percopy import for_worker


class EventCall(Protocol):
    """What a map calls: fit to be sent to a worker process."""

    def __call__(self, event: Event) -> "list[Sample] | Iterator[Sample]":
        """Give the outputs of one event."""
        ...

    def for_worker(self) -> "EventCall":
        """Give a call for one worker thread."""
        ...


class MapCall:
    """Event -> list of samples, or an iterator of them where the function is a generator.

    Args:
        stage: a map, or a filter as a map that gives None.
        key: what random numbers depend on besides epoch, source and id: seed and stage.
    """

    def __init__(self, stage: st.Map, key: tuple[Any, ...]) -> None:
        self.stage, self.key = stage, key

    def __call__(self, event: Event) -> "list[Sample] | Iterator[Sample]":
        """Call the function on one sample, or on a group as columns."""
        stage, value = self.stage, event[VALUE]
        if stage.batched:
            return call_batched(stage, [e[VALUE] for e in value])
        info = None
        if stage.with_info:
            name = event[ID]
            index = name if isinstance(name, int) else -1
            info = SampleInfo(str(name), event[SOURCE].name, index, event[EPOCH], self.key)
        if stage.input_columns is not None or stage.output_columns is not None:
            return call(stage, value, info)
        given = stage.fn(dict(value), info) if info is not None else stage.fn(dict(value))
        if type(given) is dict:
            return [merged(stage, value, given)]
        if given is None:
            return []
        if isinstance(given, GeneratorType):
            return _each(stage, value, given)
        if isinstance(given, list):
            return [merged(stage, value, one) for one in given]
        return [merged(stage, value, given)]

    def for_worker(self) -> "MapCall":
        """Give a call for one worker thread: tokenizers are its own."""
        fn = for_worker(self.stage.fn)
        if fn is self.stage.fn:
            return self
        return MapCall(replace(self.stage, fn=fn), self.key)


def _each(stage: st.Map, value: Sample, outputs: Any) -> Iterator[Sample]:
    """Hand on the outputs of a generator one by one; it is closed by the thread that runs it."""
    try:
        for one in outputs:
            yield merged(stage, value, one)
    finally:
        outputs.close()


class FilterCall:
    """Event -> the sample itself, or none."""

    def __init__(self, stage: st.Filter, key: tuple[Any, ...]) -> None:
        self.stage, self.key = stage, key

    def __call__(self, event: Event) -> list[Sample]:
        """Call the predicate on one sample."""
        value, name = event[VALUE], event[ID]
        if self.stage.with_info:
            index = name if isinstance(name, int) else -1
            keep = self.stage.fn(value, SampleInfo(str(name), event[SOURCE].name, index, event[EPOCH], self.key))
        else:
            keep = self.stage.fn(value)
        return [value] if keep else []

    def for_worker(self) -> "FilterCall":
        """Give a call for one worker thread."""
        return self


def describe_event(event: Event) -> str:
    """Name an event for an error."""
    value = event[VALUE]
    if type(value) is list and value and type(value[0]) is tuple:
        return f"samples {value[0][ID]!r} to {value[-1][ID]!r}"
    source = event[SOURCE].name
    return f"sample {str(event[ID])!r}" + (f" of source {source!r}" if source else "")
