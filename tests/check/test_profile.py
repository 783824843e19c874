"""Profiles: every call is counted wherever it ran, results stay the same, and two profiles can be compared."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

import thalweg as tw
from thalweg.check import profile as room
from thalweg.check.advice import Costs, case_of
from thalweg.check.instrument import Notes, instrumented
from thalweg.check.profile import apart, canned, drained, profile
from thalweg.check.profiles import Profile, compared
from thalweg.cli import cli
from thalweg.core.errors import ConfigError, InputError
from thalweg.feed.fuse import fused


def double(sample):
    return {"input_ids": [2 * i for i in sample["input_ids"]]}


def plus(sample, info):
    return {"input_ids": [i + int(info.rng.integers(0, 2)) for i in sample["input_ids"]]}


SAMPLES = [{"input_ids": [n, n + 1, n + 2]} for n in range(64)]


def made(mode="inline", workers=0):
    feed = tw.from_dataset(SAMPLES).shuffle(seed=3).map(double, mode=mode, workers=workers)
    return feed.map(plus, with_info=True).batch(4)


def rows(feed, n=16):
    loader = tw.Loader(feed, return_tensors="np")
    out = [b["input_ids"].tolist() for b, _ in zip(loader, range(n), strict=False)]
    loader.close()
    return out


@pytest.mark.parametrize(
    ("mode", "workers"), [("inline", 0), ("threads", 2), pytest.param("processes", 2, marks=pytest.mark.slow)]
)
def test_clocks_change_no_result_and_see_every_call(mode, workers, tmp_path):  # E3 E54
    feed = made(mode, workers)
    notes = Notes(tmp_path)
    timed, labels = instrumented(feed, notes)
    assert timed.kind == feed.kind
    assert timed.fingerprint == feed.fingerprint
    assert rows(timed) == rows(feed)
    seen = notes.read()
    assert {clock: int(seen[clock][1]) for clock in labels} == dict.fromkeys(labels, 64)
    assert all("plus" in label or "double" in label for label in labels.values())
    assert seen["read"][1] >= 1
    assert all(0 <= v[3] <= v[0] + 0.1 for v in seen.values())


def test_clocks_stand_in_the_sources_of_a_mix_and_in_streams(tmp_path):
    parts = {"a": tw.from_dataset(SAMPLES[:32]).map(double, length="same"), "b": tw.from_dataset(SAMPLES[32:])}
    _, labels = instrumented(tw.mix(parts).batch(2), Notes(tmp_path))
    assert list(labels) == ["0.0.1 map"]
    stream = tw.from_stream(lambda: iter(SAMPLES)).map(double).batch(4)
    notes = Notes(tmp_path)
    timed, labels = instrumented(stream, notes)
    assert rows(timed) == rows(stream)
    assert notes.read()["read"][1] == 64


class Time:
    """A clock that moves only when a stage says so."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def time(monkeypatch):
    clock = Time()
    for module in ("thalweg.check.profile", "thalweg.check.instrument", "thalweg.feed.pace", "thalweg.feed.meters"):
        monkeypatch.setattr(f"{module}.perf_counter", clock)
    return clock


class Slow:
    """A source whose reads take their time."""

    lengths = None

    def __init__(self, clock, seconds):
        self.clock, self.seconds = clock, seconds

    def __len__(self):
        return 4096

    def __getitem__(self, index):
        self.clock.now += self.seconds
        return {"input_ids": [1, 2, 3]}


# E1 E2 E3 E54
@pytest.mark.parametrize("read", [0.001, 0.004])
@pytest.mark.parametrize("work", [0.002, 0.010])
@pytest.mark.parametrize("train", [0.0, 0.005, 0.050])
def test_shares_of_a_loop_with_known_times_are_the_truth(time, read, work, train):
    def fn(sample):
        time.now += work
        return sample

    def step(batch):
        time.now += train

    feed = tw.from_dataset(Slow(time, read), fingerprint="slow").map(fn, mode="inline").batch(4)
    found = profile(feed, 20, train=step, workers=0)
    whole = 4 * read + 4 * work + train
    assert found.shares["read"] == pytest.approx(4 * read / whole, abs=0.05)
    assert sum(found.costs.maps.values()) / whole == pytest.approx(4 * work / whole, abs=0.05)
    assert found.shares["training"] == pytest.approx(train / whole, abs=0.05)
    assert found.waiting_share == pytest.approx((whole - train) / whole, abs=0.05)
    assert found.preprocess == pytest.approx(work)
    assert found.consume == pytest.approx(train / 4, rel=0.1)
    assert found.rates["as it is"] == pytest.approx(1 / whole, rel=0.05)
    assert found.rates["without functions"] == pytest.approx(1 / (4 * read + train), rel=0.05)
    assert found.rates["without training"] == pytest.approx(1 / (4 * read + 4 * work), rel=0.05)
    assert found.case == case_of(work, train / 4)
    heavy = whole / (4 * read + train) > 1.1
    assert found.verdict == ("preprocessing is heavy" if heavy else "preprocessing is not heavy")


# E3 E54
@pytest.mark.parametrize("kind", ["planned", "stream"])
def test_packing_and_collating_have_their_own_times_whatever_the_feed_is(kind, monkeypatch):
    clock = Time()
    for module in ("check.profile", "check.instrument", "feed.pace", "feed.meters", "feed.streambatch",
                   "feed.streampack"):  # fmt: skip
        monkeypatch.setattr(f"thalweg.{module}.perf_counter", clock)

    def collate(samples):
        clock.now += 0.03
        return {"input_ids": np.zeros((len(samples), 1))}

    rows = [{"input_ids": [n] * 4} for n in range(4000)]
    head = tw.from_dataset(rows) if kind == "planned" else tw.from_stream(lambda: iter(rows))
    feed = head.pack(8, policy="fill", overlong="drop")
    if kind == "stream":
        from thalweg.plan import pack_stream

        slow = pack_stream.packer

        def packer(*a, **more):
            made = slow(*a, **more)
            inner = made.push
            made.push = lambda length, key: setattr(clock, "now", clock.now + 0.005) or inner(length, key)
            return made

        monkeypatch.setattr("thalweg.feed.streampack.packer", packer)
    found = profile(feed.batch(2, collate=collate), 20, train=lambda _: None, workers=0, ablate=False)
    assert found.costs.collate == pytest.approx(0.03)
    assert kind == "planned" or found.costs.plan == pytest.approx(4 * 0.005)
    assert found.report().facts["collate"].endswith("30.00 ms a batch")
    assert "plan and pack" in found.report().facts


def test_what_batches_take_on_their_way_to_the_device_is_told(time, monkeypatch):  # E3
    def finish(batch):
        time.now += 0.02
        return batch

    monkeypatch.setattr(room.Loader, "_find_finish", lambda *_: finish)
    found = profile(tw.from_dataset(SAMPLES).batch(2), 20, train=lambda _: None, workers=0, ablate=False)
    assert found.costs.transfer == pytest.approx(0.02)
    assert found.report().facts["transfer"].endswith("20.00 ms a batch")


def test_queues_and_the_wait_for_the_next_in_order_are_told_for_both_kinds():  # E54
    rows = [{"input_ids": [n]} for n in range(4000)]
    for head, names in ((tw.from_dataset(rows), {"batches ready", "groups read or mapped"}),
                        (tw.from_stream(lambda: iter(rows)), {"1 map"})):  # fmt: skip
        found = profile(head.map(double, mode="threads", workers=2).batch(2), 20, ablate=False)
        assert set(found.queues) == names
        for queue in found.queues.values():
            assert 0 <= queue["mean"] <= queue["most"]
        facts = found.report().facts
        assert {f"queue {name}" for name in names} <= set(facts)
        assert facts["waiting for the next in order"].endswith("ms a batch")
        assert found.costs.ordered >= 0
    assert Profile.from_dict(json.loads(json.dumps(found.to_dict()))) == found


def test_what_running_functions_as_one_call_saves_is_measured_on_a_stream(time):  # E29
    """Each queue between two functions costs a thread change; here each call of the map node takes a millisecond."""
    from thalweg.feed import call

    inner = call.MapCall.__call__

    def slow(self, event):
        time.now += 0.001
        return inner(self, event)

    stream = tw.from_stream(lambda: iter([{"input_ids": [n]} for n in range(4000)]))
    feed = stream.map(double, mode="inline").map(double, mode="inline").map(double, mode="inline").batch(1)
    assert [len(fused(list(enumerate(f.stages)))) for f in (feed, apart(feed))] == [3, 5]
    assert rows(apart(feed)) == rows(feed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(call.MapCall, "__call__", slow)
        found = profile(feed, 20, workers=0)
    assert found.fusing == pytest.approx(3.0)
    assert any("3.00 times the rate of functions apart" in f.what for f in found.report().findings)
    assert apart(stream.map(double, mode="inline").batch(1)) is None


def test_a_profile_of_an_earlier_version_is_read():
    data = Profile("x", 1, 1.0, 1, 1, Costs(read=1.0)).to_dict()
    data |= {"version": 1, "queues": {"1 map": {"waiting": 3, "bytes": 9}}}
    del data["costs"]["ordered"]
    assert Profile.from_dict(data).queues == {}


def test_what_was_made_ahead_is_drained_before_the_clock_begins(time):
    def batches():
        for number in range(100):
            time.now += 0.0 if number < 20 else 0.01  # twenty were ready
            yield number

    assert 20 < drained(batches()) <= 30


def test_a_batch_that_was_waited_for_far_longer_is_named():  # E55
    waits = [0.002] * 30
    assert Profile("x", 30, 1.0, 1, 1, Costs(), waits=waits).jumps() == []
    waits[17] = 0.5
    assert Profile("x", 30, 1.0, 1, 1, Costs(), waits=waits).jumps() == [17]


def test_a_left_out_function_gives_earlier_outputs_again():
    calls = []
    stage = tw.from_dataset(SAMPLES).map(lambda s: calls.append(1) or s).stages[1]
    fn = canned(stage, "1 map")
    out = [fn({"input_ids": [n]}) for n in range(200)]
    assert len(calls) == room.KEPT
    assert all(o in out[: room.KEPT] for o in out)


def test_a_profile_is_saved_read_and_compared_stage_by_stage(tmp_path):  # E56
    before = Profile("feed", 10, 2.0, 100, 40, Costs(read=0.1, maps={"f": 0.08}, train=0.02, waited=0.18))
    before.save(tmp_path / "a.json")
    assert Profile.load(tmp_path / "a.json") == before
    after = Profile("feed", 10, 1.0, 100, 40, Costs(read=0.01, maps={"f": 0.08}, train=0.02, waited=0.08))
    report = compared(before, after)
    assert report.facts["read"] == "100.00 -> 10.00 ms a batch (x0.10)"
    assert report.facts["rate"] == "5.00 -> 10.00 batches a second (x2.00)"
    assert "helps: 2.00" in report.findings[0].what
    assert compared(after, before).findings[0].level == "warning"
    (tmp_path / "c.json").write_text("{}")
    with pytest.raises(InputError, match="no profile"):
        Profile.load(tmp_path / "c.json")


def test_a_trace_holds_every_call_the_waits_and_the_steps(tmp_path):
    path = tmp_path / "trace.json"
    found = profile(made("threads", 2), 5, train=lambda batch: np.sum(batch["input_ids"].numpy()), ablate=False,
                    trace=str(path))  # fmt: skip
    data = json.loads(path.read_text())
    whole = [e for e in data["traceEvents"] if e["ph"] == "X"]
    assert {e["name"] for e in whole} >= {"waiting for data", "training", "read", *found.costs.maps}
    assert sum(e["name"] == "training" for e in whole) == 5
    assert all(e["dur"] >= 0 and e["ts"] > 0 and "pid" in e and "tid" in e for e in whole)
    names = {e["args"]["name"] for e in data["traceEvents"] if e["ph"] == "M"}
    assert {"loop", "worker 1"} <= names


def test_the_command_profiles_saves_and_compares(tmp_path):
    file = tmp_path / "feed_of_profile.py"
    file.write_text(
        "import thalweg as tw\nfeed = tw.from_dataset([{'input_ids': [1, 2]}] * 40).map(lambda s: s).batch(2)\n"
    )
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    for path in (a, b):
        done = CliRunner().invoke(cli, ["profile", f"{file}:feed", "--steps", "5", "--save", str(path), "--json"])
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["batches"] == 5
    done = CliRunner().invoke(cli, ["profile", "diff", str(a), str(b)])
    assert done.exit_code == 0, done.output
    assert "batches a second" in done.stdout
    assert CliRunner().invoke(cli, ["profile", "diff", str(a)]).exit_code == 2


def test_a_file_of_settings_runs_as_its_loader_says_with_the_words_behind_it(tmp_path):
    (tmp_path / "raw.jsonl").write_text('{"input_ids": [1, 2]}\n' * 64)
    file = tmp_path / "data.yaml"
    file.write_text(
        f"train:\n  - from_files: {tmp_path}/raw.jsonl\n  - batch: {{size: 2}}\n"
        "loader: {train: {seed: 5, gradient_accumulation_steps: 4}}\n"
    )
    feed, told, title = room.runnable(file, ["train.batch.size=3", "loader.train.seed=6"])
    assert (feed.stages[-1].sizes[0], told["seed"], told["gradient_accumulation_steps"]) == (3, 6, 4)
    assert title == f"{file}:train"
    words = [str(file), "train.batch.size=8", "--steps", "4", "--json"]
    done = CliRunner().invoke(cli, ["profile", *words])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["tokens"] == 4 * 8 * 2
    assert "one target at a time" in CliRunner().invoke(cli, ["profile", str(file), "other.yaml"]).output


def test_a_loop_without_training_says_so_and_one_without_functions_judges_none():
    told = profile(tw.from_dataset(SAMPLES).batch(4), 4)
    assert "no step of training was told" in told.advice[0]
    assert told.verdict == ""
    assert set(told.rates) == {"as it is", "without training"}
    assert "no step of training" not in str(profile(made(), 4, train=0.001, ablate=False))


def test_what_cannot_be_profiled_says_why(tmp_path):
    with pytest.raises(ConfigError, match="at least 1"):
        profile(made(), 0)
    with tw.create_records(tmp_path / "records") as writer:
        writer.write({"input_ids": np.array([1], np.int32)})
    with pytest.raises(ConfigError, match="a record set does not run"):
        profile(tmp_path / "records")
