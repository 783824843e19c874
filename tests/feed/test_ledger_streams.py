"""Promises of the ledger of a stream: every row counts once, over ranks, legs and restarts, in few bytes."""

from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import thalweg as tw
from rank_threads import Ranks
from thalweg.core.errors import InputError
from thalweg.core.topology import Topology
from thalweg.feed.ledger import Ledger, verify_ledger
from thalweg.feed.ledgerfile import read_leg
from thalweg.feed.ledgerstream import RowCoder, runs_of_rows
from thalweg.feed.loader import FeedLoader
from thalweg.feed.streamstate import merge_states


def feed(n=96, shards=4, packed=False):
    rows = [{"input_ids": np.full(1 + i % 5, i, np.int32)} for i in range(n)]
    stream = tw.from_stream(rows, shards=shards)
    if packed:  # ranks would then differ in rows, and only those with a partner count
        stream = stream.shuffle(buffer_size=8).filter(lambda s: s["input_ids"][0] % 3 != 1).pack(12, overlong="drop")
    return stream.batch(1)


def loader(folder, rank=0, world=1, stream=None, **more):
    return FeedLoader(stream or feed(), topology=Topology(rank, world), ledger=str(folder), **more)


@pytest.mark.parametrize("worlds", [(4, 1, 2), (1, 4), (2,), (1, 1, 1)])
def test_each_row_counts_once_over_legs_of_any_number_of_ranks(tmp_path, worlds):
    # A51 A35: the state is older than the last steps, which are rolled back and come again
    state, rolled, alone = None, 0, max(worlds) == 1
    stream, taken = feed(packed=alone), 4 if alone else 12
    for leg, world in enumerate(worlds):
        last = leg + 1 == len(worlds)
        states = []
        for rank in range(world):
            run = loader(tmp_path, rank, world, stream, tail="pad")
            if state is not None:
                run.load_state_dict(state)
            it = iter(run)
            for _ in islice(it, None if last else taken // world):  # so that all sub-streams are equally far
                pass
            states.append(run.state_dict())
            if not last:
                rolled += len(list(islice(it, 2)))
            run.close()
        state = None if last else merge_states(states)
    verdict = verify_ledger(tmp_path)
    assert verdict.ok, verdict.problems
    assert verdict.legs == len(worlds)
    assert verdict.superseded == rolled
    whole = FeedLoader(stream, topology=Topology(), tail="pad")
    assert verdict.rows == len(list(whole))
    whole.close()
    with pytest.raises(InputError, match="no plan to compare"):
        verify_ledger(tmp_path, feed())


def test_a_restarted_epoch_and_a_mix_of_streams_are_proven_too(tmp_path):
    parts = {k: tw.from_stream([{"n": i} for i in range(40)], shards=2) for k in "ab"}
    run = loader(tmp_path, stream=tw.mix(parts).batch(4, collate="raw"), workers=0)
    for _ in islice(run, 5):
        pass
    whole = sum(len(b.info.ids) for b in run)
    whole += sum(len(b.info.ids) for b in run)
    run.close()
    verdict = verify_ledger(tmp_path)
    assert verdict.ok, verdict.problems
    assert sorted(verdict.epochs) == [0, 1]
    assert verdict.rows == whole + 20


@pytest.mark.parametrize("fault", ["lost", "twice", "other"])
def test_a_row_that_is_lost_or_comes_twice_or_holds_something_else_is_named(tmp_path, fault):
    ledger = Ledger(str(tmp_path), Topology())
    ledger.describe({"accumulation": 1, "step": 0, "fingerprint": "f", "shards": 2})
    ledger.start()
    numbers = {"lost": [0, 1, 3], "twice": [0, 1, 1], "other": [0, 1, 2]}[fault]
    for step, number in enumerate(numbers):
        ledger.add_rows(step, 0, [(0, 5, step), (1, 5, number)], np.array([step, 100 + step], np.uint64))
    if fault == "other":
        ledger.event("restarted", tw.feed.ledger.Place(5), 0)
        ledger.add_rows(0, 0, [(0, 5, 0), (1, 5, 0)], np.array([0, 7], np.uint64))
    ledger.close()
    said = "; ".join(verify_ledger(tmp_path).problems)
    want = {"lost": "rows 2 to 2 of epoch 5, sub-stream 1, were not delivered", "twice": "was delivered twice"}
    assert want.get(fault, "row 0 of epoch 5, sub-stream 1, held other samples") in said


def test_a_rank_with_rows_of_weight_zero_is_not_missing(tmp_path):
    # until="all"
    def keep(s):
        return s if s["n"] % 2 == 0 or s["n"] % 4 == 1 else None

    stream = tw.from_stream([{"n": i} for i in range(40)]).map(keep, mode="threads", workers=2)
    ids = Ranks(2).run(stream.batch(2, collate="raw"), until="all", ledger=str(tmp_path))
    assert [len(got) for got, _ in ids] == [10, 10], ids
    verdict = verify_ledger(tmp_path)
    assert verdict.ok, verdict.problems
    assert verdict.rows == 30


@pytest.mark.parametrize(("batch", "shards"), [(1, 1), (1, 8), (8, 4)])
def test_an_entry_takes_at_most_16_bytes_a_row(tmp_path, batch, shards):
    stream = tw.from_stream([{"n": i} for i in range(2000)], shards=shards).filter(lambda s: s["n"] % 7 != 3)
    run = loader(tmp_path, stream=stream.batch(batch, collate="raw"), workers=0, tail="pad")
    rows = sum(len(b.info.ids) for b in run)
    run.close()
    (path,) = tmp_path.glob("*.ledger")
    assert path.stat().st_size - 400 <= 16 * rows


keys = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 3), st.integers(0, 1 << 40)), max_size=12, unique=True)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1 << 33), keys), max_size=8), st.integers(1, 3), st.data())
def test_entries_come_back_as_written_and_a_cut_off_one_is_left_out(entries, accumulation, data):
    writer, reader, raw, ends = RowCoder(accumulation), RowCoder(accumulation), b"", [0]
    wrote = []
    for step, rows in entries:
        runs, order = runs_of_rows(rows)
        assert sorted(order) == list(range(len(rows)))
        flat = [(r.sub, r.epoch, r.index + k) for r in runs for k in range(r.count)]
        assert flat == [rows[i] for i in order]
        raw += writer.encode(step, step % accumulation, runs)
        ends.append(len(raw))
        wrote.append((step, step % accumulation, runs))
    cut = data.draw(st.integers(0, len(raw)))
    at, got, view = 0, [], memoryview(raw)[:cut]
    try:
        while at < len(view):
            step, micro, runs, at = reader.decode(view, at)
            got.append((step, micro, runs))
    except IndexError:
        pass
    assert got == wrote[: sum(end <= cut for end in ends[1:])]


def test_a_file_that_ends_in_the_middle_of_an_entry_is_read_up_to_it(tmp_path):
    run = loader(tmp_path, stream=tw.from_stream([{"n": i} for i in range(20)]).batch(2, collate="raw"), workers=0)
    list(run)
    run.close()
    (path,) = tmp_path.glob("*.ledger")
    data = path.read_bytes()
    head = data.index(b"\n") + 1
    for cut in range(head, len(data)):
        path.write_bytes(data[:cut])
        entries = [e for e in read_leg(path)[1] if not isinstance(e, dict)]
        assert [e.step for e in entries] == list(range(len(entries)))
        assert all(len(e.digests) == 2 for e in entries)
