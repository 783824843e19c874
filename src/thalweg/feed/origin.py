"""Where a stream's items come from: an iterable, a function that makes one, or data with random access.

Decides how an origin is opened at an epoch and a position, and when its own state can save reading again. Knows no
sub-streams and no order.
"""

import contextlib
import inspect
import json
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol

import numpy as np

from thalweg.core.errors import ConfigError, StateError
from thalweg.feed.source import Source, samples_of
from thalweg.plan.shuffle import Permutation

READ = 256  # samples of a source with random access read at once
TOLD = 1000  # items read again for a resume beyond which that is said


class Origin(Protocol):
    """Items of one epoch, from any position."""

    def open(self, epoch: int, position: int, snapshot: tuple[int, Any] | None) -> Iterator[Any]:
        """Give items from `position` on; `snapshot` is (position, state) taken at or before it."""
        ...

    def snapshot(self) -> Any | None:
        """Give the state of the iterator opened last, as JSON-like data; None where it has none."""
        ...

    def name(self, position: int) -> str:
        """Give the id of the item at a position."""
        ...


def plain(value: Any) -> dict[str, Any]:
    """Give an item as a sample: a dict as it is, anything else as column "value"."""
    if isinstance(value, dict):
        return value
    return dict(value) if isinstance(value, Mapping) else {"value": value}


_read_once: "weakref.WeakSet[Any]" = weakref.WeakSet()


class IterableOrigin:
    """Any iterable, or a function that returns one.

    Args:
        make: an iterable (list, `datasets.IterableDataset`, torch IterableDataset, generator) or a function of no
            argument, or of `epoch`. If what it gives has `state_dict` and `load_state_dict`, they carry the place;
            `set_epoch` is called where it exists.
    """

    def __init__(self, make: Any) -> None:
        self._make: Any = make
        self._function = callable(make) and not hasattr(make, "__iter__")
        self._by_epoch = self._function and takes(make, "epoch")
        self._opened: Any = None
        self._started = False
        if not self._function and not hasattr(make, "__iter__"):
            raise ConfigError(
                f"{type(make).__name__} is neither iterable nor a function", where="from_stream",
                fix="give an iterable, or a function that returns one",
            )  # fmt: skip

    def open(self, epoch: int, position: int, snapshot: tuple[int, Any] | None) -> Iterator[Any]:
        """Open at a position; without a state of its own the source is read again up to there, and that is said."""
        made = self._made(epoch)
        at = 0
        self._opened = made if _stated(made) else None
        if snapshot is not None and snapshot[0] <= position:
            if self._opened is None:
                raise StateError(
                    "the state has a place of the source, and the source has no load_state_dict", where="from_stream"
                )
            made.load_state_dict(json.loads(json.dumps(snapshot[1])))
            at = snapshot[0]
        if isinstance(made, Sequence) and not isinstance(made, str | bytes):
            return map(made.__getitem__, range(position, len(made)))
        iterator: Iterator[Any] = iter(made)
        if self._opened is None and _stated(iterator):
            self._opened = iterator
        if position > at:
            if position - at > TOLD:
                warnings.warn(
                    f"the source cannot go to item {position:,} by itself: {position - at:,} items are read again "
                    "(without preprocessing them)",
                    UserWarning,
                    stacklevel=2,
                )
            next(islice(iterator, position - at - 1, None), None)
        return iterator

    def _made(self, epoch: int) -> Any:
        if self._function:
            made: Any = self._make(epoch=epoch) if self._by_epoch else self._make()
        else:
            made = self._make
            if hasattr(made, "__next__") and self._spent(made):
                raise ConfigError(
                    f"this {type(made).__name__} can be read only once, and a second pass is needed",
                    where="from_stream",
                    fix="give a function that makes it: from_stream(lambda: read(...))",
                )
        self._started = True
        if hasattr(made, "set_epoch"):
            made.set_epoch(epoch)
        return made

    def _spent(self, iterator: Any) -> bool:
        """Say whether an iterator was read before, by any stream; from now on it was."""
        spent = self._started
        with contextlib.suppress(TypeError):  # some iterators can't be referred to weakly
            spent = spent or iterator in _read_once
            _read_once.add(iterator)
        return spent

    def snapshot(self) -> Any | None:
        """Give the state of what was opened last."""
        if self._opened is None:
            return None
        state = self._opened.state_dict()
        try:
            return json.loads(json.dumps(state))
        except TypeError as error:
            raise StateError(
                f"the state_dict of {type(self._opened).__name__} is not JSON: {error}", where="from_stream",
                fix="make it of numbers, text, lists and dicts",
            ) from error  # fmt: skip

    def name(self, position: int) -> str:
        """Give the position as id."""
        return str(position)


def _stated(value: Any) -> bool:
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


def takes(make: Any, *names: str) -> bool:
    """Say whether a function has parameters of these names."""
    try:
        return inspect.signature(make).parameters.keys() >= set(names)
    except (TypeError, ValueError):
        return False


class IndexedOrigin:
    """Data with random access, in order or in a permutation of its own for each epoch; any position costs the same.

    Args:
        source: read by index.
        key: of the permutation; None reads in order.
    """

    def __init__(self, source: Source, key: tuple[Any, ...] | None) -> None:
        self._source, self._key = source, key
        self._order: tuple[int, Any] = (-1, None)

    def _indices(self, epoch: int, a: int, b: int) -> Any:
        positions = np.arange(a, b)
        if self._key is None:
            return positions
        if self._order[0] != epoch:
            self._order = (epoch, Permutation(len(self._source), *self._key, epoch))
        return self._order[1](positions)

    def open(self, epoch: int, position: int, snapshot: tuple[int, Any] | None) -> Iterator[Any]:
        """Open at a position."""
        del snapshot
        n = len(self._source)
        for a in range(position, n, READ):
            indices = self._indices(epoch, a, min(a + READ, n))
            ids = self._source.ids(indices)
            for name, sample in zip(ids, samples_of(self._source.read(indices), len(indices)), strict=True):
                yield Named(name, sample)

    def snapshot(self) -> Any | None:
        """None is needed."""
        return None

    def name(self, position: int) -> str:
        """Not asked: items bring their ids."""
        return str(position)


class Named:
    """A sample that brings its id."""

    __slots__ = ("id", "sample")

    def __init__(self, id: str, sample: dict[str, Any]) -> None:  # noqa: A002
        self.id, self.sample = id, sample
