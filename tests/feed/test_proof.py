"""The ledger proves exactly-once over restarts and topologies, and says where it is not so."""

import json
import os
import subprocess
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import thalweg as tw
from thalweg.cli import cli
from thalweg.core.errors import InputError
from thalweg.feed.ledger import verify_ledger
from thalweg.feed.ledgerfile import CLOSED, read_leg
from thalweg.feed.loader import FeedLoader
from thalweg.feed.replay import why_logged
from thalweg.feed.rowsof import why_sample, why_step
from thalweg.feed.sourcepasses import SourcePasses


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


def test_what_was_handed_over_is_in_the_file_without_a_state_being_asked_for(tmp_path, monkeypatch):
    # often rank 0 alone saves a state, and all may be killed right after it
    now = [100.0]
    monkeypatch.setattr("thalweg.feed.ledger.monotonic", lambda: now[0])
    loader = tw.Loader(feed(), ledger=tmp_path / "run", return_tensors="np")
    for n, _ in enumerate(islice(loader, 8), 1):
        now[0] += 1.0  # a step of training
        (path,) = (tmp_path / "run").glob("*.ledger")
        assert len(read_leg(path)[1]) == n
    loader.close()


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


# C31 E42 E43
@pytest.mark.filterwarnings("ignore:balance. steps of")
@pytest.mark.parametrize("kind", ["packed", "cut", "rows", "one arrangement", "balanced"])
def test_samples_are_counted_by_source_and_pass_over_it(tmp_path, kind):
    def part(name, k):
        rows = [{"input_ids": np.arange(1 + i % 9, dtype=np.int32), "id": f"{name}{i}"} for i in range(k)]
        return tw.from_dataset(rows, id="id")

    whole = part("a", 60) if kind == "one arrangement" else tw.mix({"a": part("a", 60), "b": part("b", 25)}, seed=3)
    whole = whole.shuffle(1)
    of = {
        "packed": lambda f: f.pack(16).batch(1),
        "cut": lambda f: f.pack(16, policy="concat_split").batch(1),
        "rows": lambda f: f.batch(2),
        "one arrangement": lambda f: f.pack(16, repack="never").batch(1),
        "balanced": lambda f: f.pack(16).balance().batch(1),
    }[kind](whole)
    state, seen = None, []
    for world, steps in ((2, 7), (3, 4), (1, 9)):
        ranks = [
            FeedLoader(of, topology=tw.Topology(rank=r, world=world), epochs=None, ledger=tmp_path)
            for r in range(world)
        ]
        for rank in ranks:
            if state is not None:
                rank.load_state_dict(state)
            seen += [i for batch in islice(rank, steps) for row in batch.info.ids for i in row]
        state = ranks[0].state_dict()
        for rank in ranks:
            rank.close()
    verdict = verify_ledger(tmp_path, of)
    assert verdict.ok, verdict.problems
    for name, n in (("a", 60), ("b", 25)):
        passes = verdict.sources.get(name, {}) if kind != "one arrangement" else verdict.sources["data"]
        if name == "b" and kind == "one arrangement":
            continue
        assert {total for _, total in passes.values()} == {n}
        delivered = sum(1 for i in seen if i.startswith(name))
        assert sum(got for got, _ in passes.values()) <= delivered
        if kind != "cut":  # a sample that is cut comes in pieces
            assert sum(got for got, _ in passes.values()) == delivered
            assert all(passes[p][0] == n for p in sorted(passes)[:-2])  # every pass but those under way is whole
    assert "pass 0" in verdict.text(compared=True)
    assert verify_ledger(tmp_path).sources == {}


def test_a_plan_that_gives_a_sample_twice_in_a_pass_is_found(tmp_path, monkeypatch):  # E43
    leg(tmp_path, 6, world=2)
    plain = SourcePasses._add

    def doubled(self, block, rows):
        plain(self, block, rows)
        plain(self, block, rows[:1])

    monkeypatch.setattr(SourcePasses, "_add", doubled)
    assert any("came twice in pass 0" in p for p in verify_ledger(tmp_path, feed()).problems)


def test_a_row_costs_about_nine_bytes(tmp_path):
    leg(tmp_path, 40, n=2000)
    size = sum(p.stat().st_size for p in tmp_path.glob("*.ledger"))
    text, entries = read_leg(next(tmp_path.glob("*.ledger")))
    assert len(entries) == 40 + 1
    assert entries[-1] == {"event": "closed"}
    assert text["world"] == 1
    assert size - len(json.dumps(text)) < 40 * 2 * 10 + 60


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
    data[-3 - len(CLOSED)] ^= 1
    path.write_bytes(bytes(data))
    assert verify_ledger(changed).ok
    assert "other samples than the plan" in verify_ledger(changed, feed()).problems[0]
    (told,) = verify_ledger(changed, feed(23)).problems
    assert "another feed" in told
    assert "data" in told
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
    path.write_bytes(path.read_bytes()[: -5 - len(CLOSED)])
    assert verify_ledger(tmp_path).steps == 9


def test_no_ledger_is_an_error(tmp_path):
    with pytest.raises(InputError, match="no ledger"):
        verify_ledger(Path(tmp_path))


SHAPED = {
    "balanced": lambda: feed_of(lambda f: f.shuffle().pack(16, overlong="drop").balance(window=8, run=4).batch(2)),
    "buckets": lambda: feed_of(lambda f: f.shuffle().bucket([4, 8], [4, 2, 1])),
    "budget": lambda: feed_of(lambda f: f.shuffle().token_budget(32)),
}


def feed_of(then):
    rows = [
        {"input_ids": np.arange(1 + i * 7 % 13, dtype=np.int32), "id": f"s{i}", "unit": "a.jsonl", "row": i}
        for i in range(150)
    ]
    return then(tw.from_dataset(rows, id="id"))


# E46 E49
@pytest.mark.filterwarnings("ignore::thalweg.feed.even.BalanceWarning")  # steps of other layouts are less even
@pytest.mark.parametrize("name", SHAPED)
@pytest.mark.parametrize("tail", ["drop", "carry", "pad"])
def test_balance_buckets_and_budgets_are_proved_and_explained_too(tmp_path, name, tail):
    state, told, first = None, {}, 0
    for world, accumulation, steps in ((2, 1, 4), (1, 2, 3), (3, 1, 2)):
        ranks = [
            tw.Loader(
                SHAPED[name](), topology=tw.Topology(rank=r, world=world), gradient_accumulation_steps=accumulation,
                epochs=3, tail=tail, ledger=tmp_path, return_tensors="np", seed=5,
            )
            for r in range(world)
        ]  # fmt: skip
        for rank, loader in enumerate(ranks):
            if state is not None:
                loader.load_state_dict(state)
            for batch in islice(loader, steps * accumulation):
                told[batch.info.step, rank, batch.info.micro] = [row for row in batch.info.ids if row]
        state = ranks[0].state_dict()
        for loader in ranks:
            loader.close()
        first += steps
    verdict = verify_ledger(tmp_path, SHAPED[name]())
    assert verdict.problems == []
    assert verdict.steps == first
    assert not verify_ledger(tmp_path, SHAPED[name](), seed=6).ok
    for (step, rank, micro), rows in told.items():
        found = why_logged(tmp_path, SHAPED[name](), step, rank)[micro]
        assert [[o.id for o in row] for row in found.rows] == rows or name != "balanced"
        assert sorted(o.id for row in found.rows for o in row) == sorted(i for row in rows for i in row)
        assert {(o.file, f"s{o.row}") for row in found.rows for o in row} == {
            ("a.jsonl", i) for row in rows for i in row
        }
    for loader_rank in range(2):
        for step in range(4):
            found = why_step(
                SHAPED[name](), step, topology=tw.Topology(rank=loader_rank, world=2), epochs=3, tail=tail, seed=5
            )
            rows = told[step, loader_rank, 0]
            assert sorted(o.id for row in found[0].rows for o in row) == sorted(i for row in rows for i in row)
            some = next(o.id for row in found[0].rows for o in row)
            _, seen = why_sample(SHAPED[name](), some, world=2, epochs=3, tail=tail, seed=5)
            assert (step, 0, loader_rank) in [(x.step, x.micro, x.rank) for x in seen]


JOB = """
import sys, os, signal, json
from itertools import islice
from pathlib import Path
import numpy as np
import thalweg as tw

rows = [{"input_ids": np.arange(1 + i % 9, dtype=np.int32), "id": f"a{i}"} for i in range(60)]
folder, rank, steps, how = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
loader = tw.Loader(
    tw.from_dataset(rows, id="id").shuffle().batch(2), topology=tw.Topology(rank=rank, world=2), epochs=None,
    ledger=folder / "ledger", return_tensors="np",
)
if (folder / "state.json").exists():
    loader.load_state_dict(json.loads((folder / "state.json").read_text()))
batches = islice(loader, steps)
for _ in range(steps):
    next(batches)
state = loader.state_dict()
print(json.dumps(state), flush=True)
if how == "wait":
    sys.stdin.readline()
if how != "end":
    os.kill(os.getpid(), signal.SIGKILL)
loader.close()
"""


def start(folder, rank, steps, how):
    env = {k: v for k, v in os.environ.items() if k not in {"RANK", "WORLD_SIZE", "MASTER_PORT"}}
    job = subprocess.Popen(
        [sys.executable, "-c", JOB, str(folder), str(rank), str(steps), how],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env,
    )  # fmt: skip
    state = job.stdout.readline()
    if how != "wait":
        job.communicate()
    return job, state


@pytest.mark.slow
def test_legs_without_a_process_group_are_told_apart_by_who_lives(tmp_path):
    # rank 1 of the first start dies before its first row, so it has no file: the next start must not join it
    job, _ = start(tmp_path, 0, 4, "kill")
    job, state = start(tmp_path, 1, 3, "wait")  # comes first in the second start
    start(tmp_path, 0, 3, "end")
    job.communicate("go\n")  # killed, when both have read three steps
    (tmp_path / "state.json").write_text(state)
    start(tmp_path, 0, 5, "end")
    start(tmp_path, 1, 5, "end")
    names = sorted(p.name for p in (tmp_path / "ledger").iterdir())
    assert [n[:12] for n in names] == [
        f"{leg:06d}-{rank:05d}" for leg, rank in ((0, 0), (1, 0), (1, 1), (2, 0), (2, 1))
    ]
    verdict = verify_ledger(tmp_path / "ledger")
    assert verdict.problems == []
    assert (verdict.legs, verdict.steps, verdict.superseded) == (3, 8, 4 * 2)


def test_of_peers_that_get_the_same_rows_one_writes(tmp_path):  # E48
    peers = [tw.Topology(dp_rank=0, dp_size=1, cp_rank=c, cp_size=2) for c in range(2)]
    rows = [{"input_ids": np.arange(8, dtype=np.int32), "id": f"a{i}"} for i in range(12)]
    sliced = tw.from_dataset(rows, id="id").shuffle(1).pack(16, overlong="drop", align=4).batch(2, collate="megatron")
    loaders = [FeedLoader(sliced, topology=t, ledger=str(tmp_path)) for t in peers]
    rows = [[b.info.ids for b in loader] for loader in loaders]
    for loader in loaders:
        loader.close()
    assert rows[0] == rows[1]
    assert len(list(tmp_path.iterdir())) == 1
    assert verify_ledger(tmp_path, sliced).ok


def test_the_command_proves_a_ledger_or_names_what_is_wrong(tmp_path):  # E49
    state = leg(tmp_path / "ledger", 5, world=2)
    leg(tmp_path / "ledger", 4, world=2, state=state)
    leg(tmp_path / "ledger", 3, world=3, state=state)
    file = tmp_path / "proved_here.py"
    file.write_text(
        "import numpy as np, thalweg as tw\n"
        "rows = [{'input_ids': np.arange(1 + i % 9, dtype=np.int32), 'id': f'a{i}'} for i in range(100)]\n"
        "feed = tw.from_dataset(rows, id='id').shuffle(1).pack(16, overlong='drop').batch(2)\n"
        "other = tw.from_dataset(rows, id='id').shuffle(2).pack(16, overlong='drop').batch(2)\n"
    )
    run = CliRunner().invoke
    try:
        good = run(cli, ["verify", "--ledger", str(tmp_path / "ledger"), f"{file}:feed"])
        assert good.exit_code == 0, good.output
        assert "16 rows handed over and then rolled back" in good.output
        assert "each row counts exactly once (and held what the plan says)" in good.output
        wrong = run(cli, ["verify", "--ledger", str(tmp_path / "ledger"), f"{file}:other", "--json"])
        assert wrong.exit_code == 1
        assert (
            "is of another feed than the one that is named: they differ in seed"
            in json.loads(wrong.output)["problems"][0]
        )
        told = run(cli, ["why", f"{file}:feed", "--ledger", str(tmp_path / "ledger"), "--step", "6", "--rank", "2"])
        assert told.exit_code == 0, told.output
        assert "step 6, epoch 0, micro-batch 0, rank 2" in told.output
        assert run(cli, ["verify"]).exit_code != 0
        assert run(cli, ["verify", "--ledger", str(tmp_path / "ledger"), "--quick"]).exit_code != 0
    finally:
        sys.modules.pop("proved_here", None)
