"""The state of a stream: a flat dict of text, with one key for each sub-stream, named for it.

Decides what is written and which states are refused. Any set of ranks that holds all sub-streams between them can
be put together and continued by any number of ranks that divides them. Knows no node by name.
"""

import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from thalweg.core.errors import StateError
from thalweg.core.state import State, digest
from thalweg.feed.identity import StateWarning, parts_in, written
from thalweg.feed.streamgiven import Given

KIND, VERSION = "stream", "1"
SUB = "sub-stream "


class Saved(NamedTuple):
    """Of one sub-stream: its token, a state of the source or None, rows of its epoch, and samples of each source."""

    token: Any
    source: Any
    rows: int
    given: Given


def sub_key(sub: int) -> str:
    """Name the key of a sub-stream; numbers sort as text."""
    return f"{SUB}{sub:06d}"


def write(
    identity: Mapping[str, str],
    shards: int,
    step: int,
    places: Mapping[int, tuple[Any, Any]],
    rows: Mapping[int, int],
    *,
    given: Mapping[int, Given] | None = None,
    changes: str = "",
    begins: Mapping[int, Sequence[int]] | None = None,
) -> State:
    """Write a state.

    Args:
        identity: digests by part.
        shards: number of all sub-streams.
        step: steps handed over.
        places: sub-stream -> (token, newest state of the source at or before it, or None).
        rows: sub-stream -> rows that it gave in its epoch.
        given: sub-stream -> samples of each source that it gave; None where there is one source.
        changes: of the weights of a mix, as text.
        begins: sub-stream -> where each of them begins in it.
    """
    state: State = {
        "kind": KIND,
        "version": VERSION,
        "parts": written(identity),
        "fingerprint": digest({k: v for k, v in identity.items() if k != "map"}),
        "shards": str(shards),
        "step": str(step),
        "changes": changes,
    }
    for sub, (token, snapshot) in sorted(places.items()):
        value = {"place": token, "source": snapshot, "rows": rows[sub]}
        value |= {"given": given[sub].written()} if given else {}
        value |= {"changes": list(begins[sub])} if begins else {}
        state[sub_key(sub)] = json.dumps(value, separators=(",", ":"))
    return state


def read(state: Mapping[str, Any], identity: Mapping[str, str], shards: int) -> tuple[int, dict[int, Saved]]:
    """Read a state: steps handed over, and what it holds of each sub-stream.

    Raises:
        StateError: another kind, a newer version, another feed, or another number of sub-streams.
    """
    if state.get("kind") != KIND:
        raise StateError(
            f"a state of kind {state.get('kind')!r} was given to a stream", fix="load it where it was saved"
        )
    if int(state.get("version", 0)) > int(VERSION):
        raise StateError(
            f"the state has version {state.get('version')}, newest known is {VERSION}", fix="upgrade thalweg"
        )
    if int(state["shards"]) != shards:
        raise StateError(
            f"the state has {state['shards']} sub-streams and this feed {shards}", where="from_stream(shards=)",
            fix=f"say shards={state['shards']}; the number of ranks must divide it",
        )  # fmt: skip
    saved = parts_in(state["parts"])
    for part in sorted({**saved, **identity}):
        if saved.get(part) != identity.get(part) and part != "map":
            raise StateError(
                f"the state belongs to another feed: its {part} differs", where=f"part {part!r}",
                fix="load it with the feed that it was saved with, or start anew",
            )  # fmt: skip
    if saved.get("map") != identity.get("map"):
        warnings.warn("the code of a map differs from the one the state was saved with", StateWarning, stacklevel=4)
    places = {}
    for key, text in state.items():
        if key.startswith(SUB):
            value = json.loads(text)
            rows, given = int(value.get("rows", 0)), Given.of(value["given"]) if "given" in value else Given()
            places[int(key.removeprefix(SUB))] = Saved(value["place"], value["source"], rows, given)
    return int(state["step"]), places


def begins_of(state: Mapping[str, Any]) -> dict[int, list[int]]:
    """Read where the changes of weights begin in each sub-stream of a state; empty where there are none."""
    found = {int(k.removeprefix(SUB)): json.loads(v).get("changes") for k, v in state.items() if k.startswith(SUB)}
    return {sub: [int(n) for n in begins] for sub, begins in found.items() if begins}


def merge_states(states: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Put the states of all ranks together, so that another number of ranks can continue.

    Args:
        states: one of each rank, saved at the same step.

    Raises:
        StateError: states of different feeds or steps, or a sub-stream that two ranks hold at different places.
    """
    merged: dict[str, str] = {}
    first: Mapping[str, Any] | None = None
    for state in states:
        first = state if first is None else first
        for key in ("kind", "parts", "shards", "step", "changes"):
            if state.get(key) != first.get(key):
                raise StateError(
                    f"states differ in {key!r}: {first.get(key)} and {state.get(key)}", where="merge_states",
                    fix="merge states that all ranks saved at the same step of one run",
                )  # fmt: skip
        for key, value in state.items():
            if merged.setdefault(key, value) != value:
                raise StateError(f"two states hold {key!r} at different places", where="merge_states")
    if first is None:
        raise StateError("no state was given", where="merge_states")
    return merged


def mine(places: Mapping[int, Any], wanted: Iterable[int], shards: int) -> None:
    """Refuse a state that lacks a sub-stream of this rank.

    Raises:
        StateError: says which are there and which are wanted.
    """
    wanted = list(wanted)
    missing = [s for s in wanted if s not in places]
    if missing:
        raise StateError(
            f"the state holds sub-streams {_short(places)} of {shards}, and this rank needs {_short(wanted)}",
            where="load_state_dict",
            fix="put the states of all ranks together with tw.merge_states([...])",
        )


def _short(numbers: Iterable[int]) -> str:
    given = sorted(numbers)
    return ", ".join(map(str, given[:8])) + (f" and {len(given) - 8} more" if len(given) > 8 else "")
