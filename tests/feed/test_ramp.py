"""A batch-size ramp in a feed: `.batch([(rows, n), ...])`, on any ranks, resumed inside it, counted and shown."""

import json
from itertools import islice

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import thalweg as tw
from thalweg.cli.simulate import command
from thalweg.core.errors import ConfigError, StateError
from thalweg.feed.config import feed_of
from thalweg.feed.even import BalanceWarning
from thalweg.feed.ledger import verify_ledger
from thalweg.feed.rowsof import why_sample, why_step
from thalweg.feed.simulate import simulate
from thalweg.testing import Leg, assert_continues_anywhere, assert_resumes_everywhere

RAMP = [(0, 1), (12, 2), (50, 3)]


def source(n=70, seed=0):
    lengths = np.random.default_rng(seed).integers(1, 20, n).tolist()
    rows = [{"input_ids": np.full(k, i % 90 + 1, np.int32), "id": f"{seed}/{i}"} for i, k in enumerate(lengths)]
    return tw.from_dataset(rows, id="id", fingerprint=f"ramp:{n}:{seed}")


def loader(feed, topology=None, accumulation=1, **more):
    topology = topology or tw.Topology()
    return tw.Loader(feed, topology=topology, gradient_accumulation_steps=accumulation, return_tensors="np", **more)


def even():
    return source(200).shuffle().pack(32).balance(b=0.1, window=24, run=6)


FEEDS = {
    "samples": lambda: source().shuffle().batch(RAMP),
    "packed": lambda: source(200).shuffle().pack(32).batch(RAMP),
    "falling": lambda: source().shuffle().batch([(0, 3), (20, 1)]),
    "balanced": lambda: even().batch(RAMP),
}
each_feed = pytest.mark.parametrize("name", FEEDS)


# C29 C33 K33
@pytest.mark.filterwarnings("ignore:balance. steps of")
@each_feed
@settings(max_examples=12, deadline=None)
@given(legs=st.lists(st.builds(Leg, st.integers(0, 6), st.sampled_from([1, 2, 3]), st.integers(1, 2)), max_size=3))
def test_legs_on_any_ranks_inside_a_ramp_read_what_one_rank_would_have_read(name, legs):
    feed = FEEDS[name]()
    rows = even().batch(1) if name == "balanced" else feed  # in a batch of several, rows stand longest first

    def make(topology, accumulation):
        one = (topology.dp_size, accumulation) == (1, 1)
        return loader(rows if one else feed, topology, accumulation, epochs=None)

    assert_continues_anywhere(make, legs)


# C48 K30
@pytest.mark.filterwarnings("ignore:balance. steps of")
@pytest.mark.parametrize(("name", "tail"), [("packed", "carry"), ("balanced", "pad")])
def test_a_ramp_goes_on_from_every_position(name, tail):
    feed = FEEDS[name]()
    assert_resumes_everywhere(lambda: loader(feed, epochs=2, tail=tail), limit=36)


# C33 E48
@pytest.mark.parametrize("tail", ["drop", "carry", "pad", "repeat"])
def test_the_length_of_a_loader_is_the_number_of_its_micro_batches_on_all_ranks(tail):
    feed = source().shuffle().batch(RAMP)
    for epochs in (1, 2):
        ranks = [loader(feed, tw.Topology(r, 2), 2, epochs=epochs, tail=tail) for r in range(2)]
        told = {len(r) for r in ranks}
        sizes = [[len(b.info.ids) for b in rank] for rank in ranks]
        assert told == {len(s) for s in sizes}
        assert sizes[0] == sizes[1]
        assert sizes[0] == sorted(sizes[0])
        assert set(sizes[0]) == {1, 2, 3}


def test_the_size_follows_the_rows_of_the_run_and_not_its_steps():
    feed = source(600).shuffle().batch([(0, 1), (40, 2)])
    for world in (1, 2, 4):
        sizes = [len(b.info.ids) for b in loader(feed, tw.Topology(0, world))]
        assert sizes.index(2) * world == 40
    first = loader(feed, tw.Topology(0, 2), epochs=None)
    list(islice(iter(first), 15))  # 30 rows
    other = loader(feed, tw.Topology(0, 5), epochs=None)
    other.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert [len(b.info.ids) for b in islice(iter(other), 4)] == [1, 1, 2, 2]


def test_a_state_of_another_tail_and_an_epoch_gone_to_are_as_far_along_the_ramp():
    feed = source(30).shuffle().batch([(0, 1), (45, 2), (100, 4)])
    run = loader(feed, epochs=None, tail="pad")
    list(islice(iter(run), 30 + 16))  # row 46 of the run
    for tail in ("carry", "drop", "repeat"):
        other = loader(feed, epochs=None, tail=tail)
        other.load_state_dict(run.state_dict())
        assert [len(b.info.ids) for b in islice(iter(other), 2)] == [2, 2]
        gone = loader(feed, epochs=None, tail=tail)
        gone.set_epoch(4)
        assert len(next(iter(gone)).info.ids) == 4


def test_a_balanced_ramp_keeps_the_largest_step_together_and_says_where_a_size_does_not_divide_it():
    feed = source(400).shuffle().pack(32).balance(b=1)
    run = loader(feed.batch([(0, 1), (8, 2), (40, 4)]), tw.Topology(0, 2))
    assert [b.info.straggler is not None for b in islice(iter(run), 3)] == [True] * 3
    assert run.stats()["run"] == 8
    assert run.stats()["step_rows"] == 2
    with pytest.warns(BalanceWarning, match="steps of 2 rows do not divide runs of 3"):
        loader(feed.batch([(0, 2), (40, 3)]))


def test_the_ledger_proves_a_ramp_in_sixteen_bytes_a_row(tmp_path):
    feed = source(4000).shuffle().batch([(0, 2), (400, 4), (1200, 8)])
    run = loader(feed, None, 2, ledger=tmp_path / "ledger", tail="pad")
    for _ in run:
        pass
    run.close()
    verdict = verify_ledger(tmp_path / "ledger", feed)
    assert verdict.ok, verdict.problems
    assert verdict.rows == 4000
    assert sum(f.stat().st_size for f in (tmp_path / "ledger").glob("*.ledger")) < 16 * 4000


def test_why_finds_the_step_of_a_sample_inside_a_ramp():
    feed = source().shuffle().batch(RAMP)
    for tail, epochs in (("drop", 1), ("carry", 2)):
        seen = {}
        run = loader(feed, tw.Topology(1, 2), 2, tail=tail, epochs=epochs)
        for b in run:
            for row in b.info.ids:
                seen.setdefault(row[0], []).append((b.info.epoch, b.info.step, b.info.micro))
            (rows,) = [m.rows for m in why_step(feed, b.info.step, topology=tw.Topology(1, 2), accumulation=2,
                                                epochs=epochs, tail=tail) if m.micro == b.info.micro]  # fmt: skip
            assert [[o.id for o in row] for row in rows] == b.info.ids
        for name in list(seen)[::9]:
            _, found = why_sample(feed, name, world=2, accumulation=2, epochs=epochs, tail=tail)
            assert [s[1:] for s in seen[name]] == [(s.step, s.micro) for s in found if s.rank == 1]


def test_print_simulate_and_settings_state_the_ramp(tmp_path):
    feed = source().shuffle().batch(RAMP)
    assert "rows a rank and micro-batch: 1, 2 from row 12 of the run, 3 from row 50" in str(feed)
    (found,) = simulate(feed, [2])
    sizes = [len(b.info.ids) * 2 for b in loader(feed, tw.Topology(0, 2))]
    assert [n for steps, n in found.step_rows for _ in range(steps)] == sizes
    assert found.steps == len(sizes)
    assert found.left_out == 70 - sum(sizes)
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    stages = tw.from_files(str(tmp_path / "a.jsonl")).batch(RAMP).to_config()
    assert stages[-1] == {"batch": {"size": [[0, 1], [12, 2], [50, 3]]}}
    assert feed_of(json.loads(json.dumps(stages)), "data.yaml").stages[-1].size == tuple(RAMP)
    (tmp_path / "data.py").write_text(
        "import numpy as np\nimport thalweg as tw\n"
        "rows = [{'input_ids': np.full(3, i, np.int32)} for i in range(70)]\n"
        "feed = tw.from_dataset(rows).batch([(0, 1), (12, 2), (50, 3)])\n"
    )
    text = CliRunner().invoke(command, [f"{tmp_path / 'data.py'}:feed", "--world", "2"])
    assert "2 ranks: 6 steps of 2 rows, then 10 steps of 4 rows, then 3 steps of 6 rows" in text.output


@pytest.mark.parametrize(
    ("size", "said"),
    [
        (0, "at least 1"),
        ([(0, 0)], "at least 1"),
        ([(0, 2), (10, -1)], "at least 1"),
        ([(5, 2)], "rise from 0"),
        ([(0, 2), (10, 4), (10, 8)], "rise from 0"),
        ([], "rise from 0"),
        ([2, 4], "a number of rows"),
        ([(0, 2, 3)], "a number of rows"),
        (2.5, "at least 1"),
    ],
)
def test_a_ramp_that_means_nothing_is_refused(size, said):
    with pytest.raises(ConfigError, match=said):
        source().batch(size)


def test_a_ramp_on_a_stream_and_beside_one_global_number_is_refused():
    with pytest.raises(ConfigError, match=r"needs a plan.*cache"):
        tw.from_stream(lambda: iter([{"input_ids": [1]}])).batch(RAMP)
    with pytest.raises(ConfigError, match="changes over the run"):
        loader(source().batch(RAMP), global_batch_size=8)
    assert source().batch([(0, 4)]).stages[-1].size == 4


def test_a_state_of_another_ramp_is_refused_by_name_and_one_of_the_same_shape_goes_on():
    run = loader(source().shuffle().batch(RAMP), epochs=None)
    list(islice(iter(run), 20))
    state = json.loads(json.dumps(run.state_dict()))
    for other in ([(0, 1), (13, 2), (50, 3)], [(0, 1), (12, 2), (50, 4)], RAMP[:2]):
        with pytest.raises(StateError, match=r"ramp .*differs"):
            loader(source().shuffle().batch(other), epochs=None).load_state_dict(state)
    # on half the ranks twice the rows of each: the same steps; and one number of rows may always change
    for other, world in (([(0, 2), (12, 4), (50, 6)], 1), (RAMP, 2), (4, 1)):
        gone = loader(source().shuffle().batch(other), tw.Topology(0, world), epochs=None)
        gone.load_state_dict(state)
        assert gone.step == 20
    plain = loader(source().shuffle().batch(2), epochs=None)
    list(islice(iter(plain), 3))
    grown = loader(source().shuffle().batch(RAMP), epochs=None)
    grown.load_state_dict(plain.state_dict())
    assert grown.state_dict().keys() == state.keys() == plain.state_dict().keys()
    assert grown.feed.fingerprint == plain.feed.fingerprint


def test_ranks_of_a_growing_batch_share_a_leg_of_the_ledger(tmp_path):  # K33
    feed = FEEDS["packed"]()
    for rank in range(2):  # without a process group the files tell who belongs together
        ranked = loader(feed, tw.Topology(rank=rank, world=2), ledger=tmp_path)
        assert len(list(ranked)) > 1
        ranked.close()
    verdict = verify_ledger(tmp_path, feed)
    assert (verdict.legs, verdict.problems) == (1, [])
