"""State: plain data with a kind and a version, fit for JSON. Never pickled.

A node's state is the place after the last item that was handed over. Decides how a state is written and which
states are refused; a newer version, another kind and unknown fields are.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from hashlib import blake2b
from typing import Any, Protocol, TypeAlias, TypeVar, cast

from thalweg.core.errors import StateError, nearest

State: TypeAlias = dict[str, Any]
Upgrade: TypeAlias = Callable[[State], State]
T = TypeVar("T")


class Stated(Protocol):
    """A frozen dataclass that names its kind and version as class attributes."""

    KIND: str
    VERSION: int


def dump(value: Any) -> State:
    """Write a stated dataclass as {"kind": ..., "version": ..., field: ...}."""
    state: State = {"kind": value.KIND, "version": value.VERSION}
    state.update({f.name: getattr(value, f.name) for f in fields(value)})
    return state


def load(cls: type[T], state: Mapping[str, Any], upgrades: Mapping[int, Upgrade] | None = None) -> T:
    """Read a state back, upgrading one version at a time.

    Raises:
        StateError: another kind, a newer version, a missing upgrade, or fields that the class does not have.
    """
    assert is_dataclass(cls)
    stated = cast("Stated", cls)
    kind, version = state.get("kind"), state.get("version")
    if kind != stated.KIND:
        raise StateError(f"a state of kind {kind!r} was given to {stated.KIND!r}", fix="load it where it was saved")
    if not isinstance(version, int) or version > stated.VERSION:
        raise StateError(
            f"state {kind!r} has version {version!r}, newest known is {stated.VERSION}", fix="upgrade thalweg"
        )
    values = dict(state)
    while version < stated.VERSION:
        if upgrades is None or version not in upgrades:
            raise StateError(f"no upgrade of state {kind!r} from version {version}")
        values, version = upgrades[version](values), version + 1
    values.pop("kind")
    values.pop("version")
    known = {f.name for f in fields(cls)}
    for name in values.keys() - known:
        raise StateError(f"unknown field {name!r} in state {kind!r}", fix=nearest(name, known))
    for name in known - values.keys():
        raise StateError(f"field {name!r} is missing in state {kind!r}")
    return cls(**values)


def digest(value: Any, size: int = 8) -> str:
    """Hash JSON-like data to hex, independent of key order."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=size).hexdigest()
