"""The ledger proves exactly-once over restarts and topologies, and says where it is not so."""

from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import thalweg as tw
from thalweg.core.errors import InputError
from thalweg.feed.ledger import verify_ledger
from thalweg.feed.ledgerfile import read_leg


def feed(n=100, size=2, mixed=False):
    def part(name, k):
        return tw.from_dataset(
            [{"input_ids": np.arange(1 + i % 9, dtype=np.int32), "id": f"{name}{i}"} for i in range(k)], id="id"
        )

    whole = tw.mix({"a": part("a", n), "b": part("b", n)}) if mixed else part("a", n)
    return whole.shuffle(1).pack(16, overlong="drop").batch(size)


def leg(folder, steps, *, world=1, accumulation=1, state=None, n=100, mixed=False, epochs=None, close=True):
    ranks = [
        tw.Loader(
            feed(n, mixed=mixed), topology=tw.Topology(rank=r, world=world), gradient_accumulation_steps=accumulation,
            epochs=epochs, ledger=folder, return_tensors="np",
        )
        for r in range(world)
    ]  # fmt: skip
    for r in ranks:
        if state is not None:
            r.load_state_dict(state)
        list(islice(r, steps * accumulation))
    states = [r.state_dict() for r in ranks]
    if close:
        for r in ranks:
            r.close()
    return states[0]


def test_legs_on_changing_worlds_with_steps_rolled_back_prove_exactly_once(tmp_path):
    state = leg(tmp_path, 5, world=2)
    leg(tmp_path, 4, world=2, state=state)  # handed over, and then the job died: rolled back
    state = leg(tmp_path, 3, world=3, state=state)
    leg(tmp_path, 6, world=1, accumulation=2, state=state)
    verdict = verify_ledger(tmp_path, feed())
    assert verdict.problems == []
    assert (verdict.legs, verdict.steps, verdict.superseded) == (4, 5 + 3 + 6, 4 * 4)
    assert verdict.rows == 5 * 4 + 3 * 6 + 6 * 4


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 2), st.integers(0, 9), st.booleans()), min_size=1, max_size=5),
    st.booleans(),
)
def test_any_legs_prove_exactly_once(tmp_path_factory, legs, mixed):
    folder, state, rows = tmp_path_factory.mktemp("ledger"), None, 0
    for world, accumulation, steps, keep in legs:
        after = leg(folder, steps, world=world, accumulation=accumulation, state=state, mixed=mixed, n=23)
        if keep:
            state, rows = after, rows + steps * world * accumulation * 2
    leg(folder, 1, state=state, mixed=mixed, n=23)
    verdict = verify_ledger(folder, feed(23, mixed=mixed))
    assert verdict.problems == []
    assert verdict.rows == rows + 2


def test_a_row_costs_about_nine_bytes(tmp_path):
    leg(tmp_path, 40, n=2000)
    size = sum(p.stat().st_size for p in tmp_path.glob("*.ledger"))
    text, entries = read_leg(next(tmp_path.glob("*.ledger")))
    assert len(entries) == 40
    assert text["world"] == 1
    assert size < 40 * 2 * 16


def test_a_lost_leg_a_doubled_leg_and_other_samples_are_found(tmp_path):
    state = leg(tmp_path / "lost", 5, world=2)
    state = leg(tmp_path / "lost", 5, world=2, state=state)
    leg(tmp_path / "lost", 5, world=2, state=state)
    for path in (tmp_path / "lost").glob("000001-*"):
        path.unlink()
    assert "steps 5 to 9 are in no leg" in verify_ledger(tmp_path / "lost").problems
    one = tmp_path / "rank"
    leg(one, 5, world=2)
    next(one.glob("*-00001of*")).unlink()
    assert verify_ledger(one).open_steps == 5
    changed = tmp_path / "changed"
    leg(changed, 5)
    path = next(changed.glob("*.ledger"))
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(bytes(data))
    assert verify_ledger(changed).ok
    assert "other samples than the plan" in verify_ledger(changed, feed()).problems[0]
    twice = tmp_path / "twice"
    leg(twice, 5)
    data = next(twice.glob("*.ledger")).read_bytes()
    (twice / "000000-00001of00002.ledger").write_bytes(data.replace(b'"rank": 0, "world": 1', b'"rank": 1, "world": 2'))
    (twice / "000000-00000of00001.ledger").write_bytes(data.replace(b'"rank": 0, "world": 1', b'"rank": 0, "world": 2'))
    assert any("delivered twice" in p for p in verify_ledger(twice).problems)


def test_a_restarted_epoch_is_read_anew_on_purpose(tmp_path):
    loader = tw.Loader(feed(), ledger=tmp_path, return_tensors="np")
    list(islice(loader, 3))
    list(loader)
    loader.close()
    verdict = verify_ledger(tmp_path, feed())
    assert verdict.ok
    assert verdict.rows == 6 + 2 * len(loader)


def test_filler_and_repeated_rows_are_never_counted(tmp_path):
    for tail in ("pad", "repeat"):
        loader = tw.Loader(feed(23, 8), tail=tail, ledger=tmp_path / tail, return_tensors="np")
        list(loader)
        loader.close()
        verdict = verify_ledger(tmp_path / tail, feed(23, 8))
        assert verdict.ok
        assert verdict.rows == feed(23).num_rows
        assert (verdict.repeated > 0) == (tail == "repeat")


def test_a_file_cut_in_the_middle_of_an_entry_is_read_up_to_it(tmp_path):
    leg(tmp_path, 10)
    path = next(tmp_path.glob("*.ledger"))
    path.write_bytes(path.read_bytes()[:-5])
    assert verify_ledger(tmp_path).steps == 9


def test_no_ledger_is_an_error(tmp_path):
    with pytest.raises(InputError, match="no ledger"):
        verify_ledger(Path(tmp_path))
