"""What a state must agree with: digests of data, seed, mix, packing and kept samples, and what differs.

Decides what is refused, what is warned about and what is free on resume (SEMANTICS 1.5). Knows no place in the order.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from thalweg.core.errors import StateError
from thalweg.core.state import digest
from thalweg.feed.compile import Compiled, compile_feed
from thalweg.feed.feed import Feed
from thalweg.plan.steps import TAILS

_MEANS = {
    "data": "the data of its sources (rows, their order, or the names of sources)",
    "kept": "the samples kept by filters and overlong",
    "seed": "the seed or the shuffle",
    "mix": "the weights, the schedule or the seed of the mix",
    "changes": "the weights changed on the way",
    "pack": "the packing (capacity, policy, overlong, align, max_docs, repack)",
    "balance": "the balance",
    "batch": "the buckets or the token budget",
}


UNCHANGED = "give what state_dict() returned, unchanged"


class StateWarning(UserWarning):
    """A state that loads, though something that may matter is different."""


def parts_of(compiled: Compiled) -> dict[str, str]:
    """Digest each part of what the order depends on, 8 hex digits each; "map" is the code of functions."""
    parts = {name: digest(value, size=4) for name, value in compiled.parts.items()}
    parts["map"] = digest(compiled.loose["map"], size=4)
    return parts


def whole(parts: Mapping[str, str]) -> str:
    """Digest all parts but the code of functions, and the ramp: it cuts the order into steps and does not change it."""
    return digest({k: v for k, v in parts.items() if k not in {"map", "ramp"}})


def fingerprint(feed: Feed, seed: int = 0) -> str:
    """Give the identity of a planned feed's data and order under a loader's seed."""
    return whole(parts_of(compile_feed(feed, seed)))


def written(parts: Mapping[str, str]) -> str:
    """Write parts as one short string."""
    return " ".join(f"{k}:{v}" for k, v in sorted(parts.items()))


def parts_in(text: Any) -> dict[str, str]:
    """Read what `written` wrote.

    Raises:
        StateError: it is something else.
    """
    pairs = [item.partition(":") for item in str(text).split()]
    if any(not colon for _, colon, _ in pairs):
        raise StateError(f"entry 'parts' of the state is {text!r}", fix=UNCHANGED)
    return {name: value for name, _, value in pairs}


def numbers_of(state: Mapping[str, Any], names: Sequence[str]) -> None:
    """Refuse a state whose numbers are missing, no numbers, or below 0.

    Raises:
        StateError: the first such entry is named.
    """
    for name in names:
        text = str(state.get(name))
        if not text.isdecimal():
            raise StateError(f"entry {name!r} of the state is {state.get(name)!r}, not a count", fix=UNCHANGED)


def refuse_kind(state: Mapping[str, Any], kind: str, version: int) -> None:
    """Refuse the state of something else, or of a newer version.

    Raises:
        StateError: it is one.
    """
    if state.get("kind") != kind:
        raise StateError(
            f"a state of kind {state.get('kind')!r} was given to a {kind} feed", fix="load it where it was saved"
        )
    numbers_of(state, ("version",))
    if int(state["version"]) > version:
        raise StateError(f"the state has version {state['version']}, newest known is {version}", fix="upgrade thalweg")


def compare(state: Mapping[str, Any], parts: Mapping[str, str], *, strict: bool = True) -> None:
    """Refuse a state of another feed, naming the first difference; warn where only a function's code differs.

    Raises:
        StateError: data, seed, mix, packing or kept samples differ, or the state is damaged.
    """
    saved = parts_in(state.get("parts", ""))
    for name, means in _MEANS.items():
        if saved.get(name) != parts.get(name):
            raise StateError(
                f"the state belongs to another feed: {means} differ", where=f"part {name!r}",
                fix="load it with the feed that it was saved with, or start anew",
            )  # fmt: skip
    if "ramp" in saved and "ramp" in parts and saved["ramp"] != parts["ramp"]:  # a plain n may change
        raise StateError(
            "the state belongs to another feed: its ramp (where the rows of a step change, and by how much) differs",
            where="part 'ramp'",
            fix="load it with the ramp that it was saved with; .batch(n) with one n goes on from any",
        )
    for name, good in (("fingerprint", state.get("fingerprint") == whole(saved)), ("tail", state.get("tail") in TAILS)):
        if not good:
            raise StateError(f"entry {name!r} of the state is {state.get(name)!r}", fix=UNCHANGED)
    if saved.get("map") != parts.get("map") and strict:
        warnings.warn(
            "the code of a map differs from the one that the state was saved with", StateWarning, stacklevel=3
        )
