"""The oracle of resuming: restore from every position and compare the rest.

Decides what a node must do to be called resumable. Works on anything with `__iter__`, `__next__`, `state`, `restore`
and `close` (a node), or with `state_dict` and `load_state_dict` (a loader). Knows no stage by name.
"""

import copy
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from thalweg.core.errors import StateError
from thalweg.testing.compare import difference

_END = object()


class _Subject:
    """One node or loader under test, driven by one pair of names."""

    def __init__(self, made: Any) -> None:
        self.made = made
        self.is_node = hasattr(made, "restore")
        # A loader, and what stands behind it, begins its next epoch where a `for` ended; a node has an end.
        self.goes_on = not self.is_node or hasattr(made, "begin")
        self._items: Iterator[Any] | None = None

    def take(self) -> Any:
        """Give the next item, or _END."""
        if self._items is None:
            self._items = iter(self.made)
        try:
            return next(self._items)
        except StopIteration:
            return _END

    def state(self) -> Any:
        return self.made.state() if self.is_node else self.made.state_dict()

    def restore(self, state: Any) -> None:
        if self.is_node:
            self.made.restore(state)
        else:
            self.made.load_state_dict(state)
        self._items = None

    def rest(self, limit: int) -> list[Any]:
        items: list[Any] = []
        while len(items) < limit:
            item = self.take()
            if item is _END:
                break
            items.append(item)
        return items

    def close(self) -> None:
        """Close twice: the second time must do nothing."""
        if hasattr(self.made, "close"):
            self.made.close()
            self.made.close()


def assert_resumes_everywhere(
    make_node: Callable[[], Any],
    *,
    limit: int = 1000,
    positions: Iterable[int] | None = None,
    only_fresh: bool = False,
) -> list[Any]:
    """Prove that a node can be stopped and continued after any item, and say where it cannot.

    A state is taken before the first item, after each item and after the end. From each one, kept as JSON:
    a fresh node, a second fresh node and a node that was already used give the same rest as the uninterrupted pass;
    the state of a restored node is the state that it was given; taking states changes nothing; a state taken earlier
    is not changed by going on; a chain of legs of one item each gives every item once. A node (not a loader) must
    also refuse a state of another kind and of a newer version. `close()` is called twice on each. A loader is looked at
    over one `for`, and must take one micro-batch a step, since its states are the edges of steps.

    Args:
        make_node: builds a fresh node or loader over the same data; called some four times a position.
        limit: how many items of the pass to look at; give it for a node without an end.
        positions: numbers of items after which to restore; None means all. 0 is before the first item.
        only_fresh: True for a node that can be restored only before it has given an item.

    Returns:
        The items of the uninterrupted pass.

    Raises:
        AssertionError: the place, and the first value that differs.
    """
    items, states = _reference(make_node, limit)
    ended = len(items) < limit
    # What lies beyond the last state is not known: with a limit each rest is compared up to it.
    chosen = range(len(states)) if positions is None else sorted({min(p, len(states) - 1) for p in positions})
    for k in chosen:
        expected = items[k:] if k < len(items) else []
        _restores_at(make_node, states[k], expected, f"restored after {k} of {len(items)} items", ended=ended)
    if not only_fresh:
        _used_nodes(make_node, items, states, ended=ended)
    _legs_of_one(make_node, items)
    probe = _Subject(make_node())
    probe.close()
    if probe.is_node:
        _refuses(make_node, states[0])
    return items


def _reference(make_node: Callable[[], Any], limit: int) -> tuple[list[Any], list[Any]]:
    """The items of an uninterrupted pass, checked against a pass in which states are taken, and those states."""
    plain = _Subject(make_node())
    items = plain.rest(limit)
    if len(items) < limit:
        assert plain.take() is _END, "after its end the node gave another item"
    plain.close()
    watched = _Subject(make_node())
    states = [watched.state()]
    frozen = [json.dumps(states[0])]
    for i, item in enumerate(items):
        _same(watched.take(), item, f"item {i} of a second pass, in which states are taken")
        states.append(watched.state())
        frozen.append(json.dumps(states[-1]))
    if len(items) < limit:
        assert watched.take() is _END, "a pass in which states are taken has more items"
        states.append(watched.state())
        frozen.append(json.dumps(states[-1]))
    watched.close()
    for i, (state, text) in enumerate(zip(states, frozen, strict=True)):
        assert json.dumps(state) == text, f"the state taken after {i} items was changed by going on"
        assert difference(json.loads(text), state) is None, f"the state after {i} items does not survive JSON: {state}"
    return items, states


def _restores_at(make_node: Callable[[], Any], state: Any, expected: list[Any], where: str, *, ended: bool) -> None:
    kept = json.loads(json.dumps(state))
    for time in ("first", "second"):
        given = copy.deepcopy(kept)
        subject = _Subject(make_node())
        subject.restore(given)
        found = difference(subject.state(), kept, "state")
        assert found is None, f"{where}: before anything is taken the state is another one: {found}"
        rest = subject.rest(len(expected))
        _same(rest, expected, f"{where} ({time} time): the rest")
        if ended and (expected or not subject.goes_on):
            assert subject.take() is _END, f"{where} ({time} time): more items than the uninterrupted pass has"
        assert given == kept, f"{where}: the state that was given was changed"
        subject.close()


def _used_nodes(make_node: Callable[[], Any], items: list[Any], states: list[Any], *, ended: bool) -> None:
    """Nodes that have already given items: forwards, backwards, and from behind their end."""
    last, middle = len(items), len(items) // 2
    for used, k in {(middle, 0), (middle, last), (last, middle), (1, middle)}:
        subject = _Subject(make_node())
        subject.rest(used)
        if ended and used == last:
            subject.take()
        subject.restore(copy.deepcopy(states[k]))
        _same(subject.rest(last - k), items[k:], f"restored after {k} items in a node that had given {used}: the rest")
        subject.close()


def _legs_of_one(make_node: Callable[[], Any], items: list[Any]) -> None:
    state: Any = None
    for i, item in enumerate(items):
        subject = _Subject(make_node())
        if state is not None:
            subject.restore(state)
        _same(subject.take(), item, f"stopped and continued after every item: item {i}")
        state = json.loads(json.dumps(subject.state()))
        subject.close()


def _refuses(make_node: Callable[[], Any], state: Any) -> None:
    assert isinstance(state.get("kind"), str), f"a state names its kind: {state}"
    version = state.get("version")
    assert str(version).isdigit(), f"a state names its version, a whole number: {state}"
    newer = type(version)(int(version) + 1)
    for change, what in (({"kind": "another"}, "another kind"), ({"version": newer}, "a newer version")):
        subject = _Subject(make_node())
        try:
            subject.restore({**copy.deepcopy(state), **change})
        except StateError:
            continue
        finally:
            subject.close()
        raise AssertionError(f"a state of {what} was taken without a StateError")


def _same(got: Any, expected: Any, where: str) -> None:
    if got is _END:
        raise AssertionError(f"{where}: nothing, expected {expected!r:.200}")
    found = difference(got, expected, "it")
    assert found is None, f"{where}: got against expected: {found}"
