"""A state is plain data with a kind and a version; what does not fit is refused by name."""

import json
from dataclasses import dataclass
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thalweg.core import state
from thalweg.core.errors import StateError


@dataclass(frozen=True)
class Place:
    KIND: ClassVar[str] = "place"
    VERSION: ClassVar[int] = 3
    row: int
    names: list[str]


UPGRADES = {1: lambda s: {**s, "names": []}, 2: lambda s: {**s, "row": s["row"] * 10}}


@given(st.integers(), st.lists(st.text()))
def test_dump_and_load_survive_json(row, names):
    dumped = state.dump(Place(row, names))
    assert dumped["kind"] == "place"
    assert dumped["version"] == 3
    assert state.load(Place, json.loads(json.dumps(dumped))) == Place(row, names)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "time"}, "kind 'time' was given to 'place'"),
        ({"version": 4}, "version 4, newest known is 3"),
        ({"version": "3"}, "version '3'"),
        ({"version": None}, "version None"),
        ({"rows": 1}, r"unknown field 'rows'.*did you mean 'row'"),
        ({"version": 0}, "no upgrade of state 'place' from version 0"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(change, words):
    with pytest.raises(StateError, match=words):
        state.load(Place, state.dump(Place(1, [])) | change, UPGRADES)


def test_a_missing_field_is_refused_by_name():
    with pytest.raises(StateError, match="field 'names' is missing"):
        state.load(Place, {"kind": "place", "version": 3, "row": 1})


def test_upgrades_go_one_version_at_a_time_and_leave_the_given_state_alone():
    old = {"kind": "place", "version": 1, "row": 2}
    assert state.load(Place, old, UPGRADES) == Place(20, [])
    assert old == {"kind": "place", "version": 1, "row": 2}
    with pytest.raises(StateError, match="no upgrade"):
        state.load(Place, old)


@given(st.dictionaries(st.text(), st.integers() | st.text() | st.none()))
def test_a_digest_does_not_depend_on_the_order_of_keys(data):
    assert state.digest(data) == state.digest(dict(reversed(data.items())))
    assert state.digest(data) != state.digest({**data, "one more": 1})


def test_digests_do_not_change_between_versions_of_ours():
    assert state.digest({"a": [1, "x", None], "b": 0.5}) == "d182db0fef64034d"
