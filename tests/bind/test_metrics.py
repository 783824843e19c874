"""Figures of a run: over ranks, by the step, to every kind of logger, with nothing gathered at other steps."""

import json

import pytest

import thalweg as tw
from thalweg.bind.metrics import StepLog, dropped, prometheus_text
from thalweg.core.errors import ConfigError
from thalweg.feed.loader import FeedLoader

SAMPLES = [{"input_ids": [1] * (n % 5 + 1)} for n in range(40)]


def loader(feed=None, rank=0, world=1, **more):
    feed = tw.from_dataset(SAMPLES).batch(2) if feed is None else feed
    return FeedLoader(feed, topology=tw.Topology(rank, world), workers=0, **more)


def test_lengths_are_mean_least_and_most_over_ranks_of_a_steps_tokens():  # C38
    mine = loader(rank=0, world=4, gradient_accumulation_steps=2)
    others = [loader(rank=r, world=4, gradient_accumulation_steps=2) for r in range(1, 4)]
    steps = [[b.info.num_tokens for b in x] for x in (loader(rank=0, world=4, gradient_accumulation_steps=2), *others)]
    asked = []

    def gather(text):
        step = len(asked)
        asked.append(text)
        own = [{"tokens": sum(s[2 * step : 2 * step + 2]), "since": 1, "sources": {}} for s in steps]
        assert json.loads(text)["tokens"] == own[0]["tokens"]
        return [json.dumps(o) for o in own]

    log = StepLog(mine, gather=gather)
    seen = [f for b in mine if (f := log(b)) is not None]
    assert len(seen) == len(asked) == 2
    for step, figures in enumerate(seen):
        lengths = [sum(s[2 * step : 2 * step + 2]) for s in steps]
        assert figures["perf/global_seq_len_avg"] == sum(lengths) / 4
        assert figures["perf/global_seq_len_min"] == min(lengths)
        assert figures["perf/global_seq_len_max"] == max(lengths)
        assert figures["data/step"] == step


def test_steps_between_two_writings_ask_nobody():
    asked = []
    x = loader(rank=0, world=2)
    log = StepLog(x, every=4, gather=lambda text: asked.append(text) or [text, text])
    assert [f is not None for f in map(log, x)] == [False, False, False, True] * 2 + [False, False]
    assert len(asked) == 2
    tokens = [b.info.num_tokens for b in loader(rank=0, world=2)]
    assert [json.loads(t)["since"] for t in asked] == [sum(tokens[:4]), sum(tokens[4:8])]


class Board:
    def __init__(self):
        self.seen = []

    def add_scalar(self, name, value, step):
        self.seen.append((name, value, step))


class Run:
    def __init__(self):
        self.seen = []

    def log(self, figures, step):
        self.seen.append((figures, step))


def test_every_kind_of_logger_gets_the_same_figures(tmp_path):
    board, run, called = Board(), Run(), []
    x = loader()
    log = StepLog(x, board, run, lambda f, s: called.append((f, s)), tmp_path / "log.jsonl", str(tmp_path / "m.prom"))
    for batch in x:
        log(batch)
    assert len(run.seen) == len(called) == 20
    assert run.seen == called
    assert [b for b in board.seen if b[2] == 19] == [(k, v, 19) for k, v in called[-1][0].items()]
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert lines[3] == {"step": 3, **called[3][0]}
    text = (tmp_path / "m.prom").read_text()
    assert f"thalweg_perf_global_seq_len_avg {called[-1][0]['perf/global_seq_len_avg']}" in text
    assert list(tmp_path.glob(".m.prom*")) == []


def test_padding_drops_and_samples_by_source_are_told():
    parts = {"a": tw.from_dataset(SAMPLES[:20]), "b": tw.from_dataset(SAMPLES[20:])}
    feed = tw.mix(parts, weights={"a": 1, "b": 1}).pack(4, overlong="drop").batch(1)
    x = loader(feed)
    log = StepLog(x)
    seen = [(log(b), [i for ids in b.info.ids for i in ids]) for b in x]
    last = seen[-1][0]
    assert last["data/dropped"] == sum(len(s["input_ids"]) == 5 for s in SAMPLES) == sum(dropped(x).values())
    assert last["data/samples/a"] + last["data/samples/b"] == sum(len(ids) for _, ids in seen)
    assert 0 <= last["data/padding"] < 1
    assert [figures["data/row"] for figures, _ in seen[:5]] == [1, 2, 3, 4, 5]


def test_only_rank_0_writes(tmp_path):
    x = loader(rank=1, world=2)
    log = StepLog(x, tmp_path / "log.jsonl", gather=lambda text: [text, text])
    assert log(next(iter(x))) is not None
    assert not (tmp_path / "log.jsonl").exists()


def test_stats_of_a_loader_become_prometheus_text():
    x = loader()
    next(iter(x))
    text = prometheus_text(x.stats())
    assert "# TYPE thalweg_loop_waiting_share gauge\nthalweg_loop_waiting_share 0.0\n" in text
    assert "thalweg_seconds_read " in text
    assert all(line.startswith(("# TYPE thalweg_", "thalweg_")) for line in text.splitlines())


def test_what_takes_no_figures_is_refused():
    with pytest.raises(ConfigError, match="takes no figures"):
        StepLog(loader(), 5)
    with pytest.raises(ConfigError, match="at least 1"):
        StepLog(loader(), every=0)


def test_tokens_a_second_are_those_of_all_ranks_since_the_last_writing(monkeypatch):
    import thalweg.bind.metrics as room

    now = [10.0]
    monkeypatch.setattr(room, "perf_counter", lambda: now[0])
    x = loader(rank=0, world=2)
    log = StepLog(x, every=2, gather=lambda text: [text, json.dumps({"tokens": 3, "since": 100, "sources": {}})])
    own, seen = [], []
    for batch in x:
        now[0] += 2.0
        own.append(batch.info.num_tokens)
        seen.append(log(batch))
    assert seen[1]["perf/tokens_per_second"] == (sum(own[:2]) + 100) / 4.0
    assert seen[3]["perf/tokens_per_second"] == (sum(own[2:4]) + 100) / 4.0


@pytest.mark.parametrize("packed", [False, True])
def test_epoch_and_position_of_each_source_are_those_of_what_came(packed):
    parts = {"a": tw.from_dataset(SAMPLES[:24]), "b": tw.from_dataset(SAMPLES[24:])}
    feed = tw.mix(parts, weights={"a": 1, "b": 2}, on_exhausted="stop_all").shuffle(seed=1)
    x = loader((feed.pack(8) if packed else feed).batch(1), epochs=3)
    log, counts = StepLog(x), {"a": 0, "b": 0}
    for batch in x:
        figures = log(batch)
        for name in (n for row in batch.info.sources for n in row):
            counts[name] += 1
        for name, size in (("a", 24), ("b", 16)):
            assert (figures[f"data/epoch/{name}"], figures[f"data/position/{name}"]) == divmod(counts[name], size)
    assert counts["a"] >= 72
    again = loader((feed.pack(8) if packed else feed).batch(1), epochs=4)
    again.load_state_dict(x.state_dict())
    told = StepLog(again)(next(iter(again)))
    assert told["data/epoch/b"] * 16 + told["data/position/b"] >= counts["b"]


def test_a_stream_tells_the_epoch_and_the_position_of_each_source_over_all_ranks():
    def feed():
        parts = {n: tw.from_stream([{"input_ids": [k, k]} for k in range(size)], shards=2) for n, size in
                 (("a", 8), ("b", 24))}  # fmt: skip
        return tw.mix(parts, weights={"a": 1, "b": 1}, on_exhausted="stop_all").batch(1)

    said, counts = [], {"a": 0, "b": 0}
    other = loader(feed(), rank=1, world=2)
    for batch in other:
        StepLog(other, gather=lambda text: said.append(json.loads(text)["places"]) or [text])(batch)
    mine = loader(feed(), rank=0, world=2)
    log = StepLog(mine, gather=lambda text: [text, json.dumps({**json.loads(text), "places": said.pop(0)})])
    for batch in mine:
        figures = log(batch)
        counts[batch.info.sources[0][0]] += 2  # the other rank reads its half in the same order
        assert figures["data/position/b"] + 24 * figures["data/epoch/b"] == counts["b"]
        assert figures["data/position/a"] + 8 * figures["data/epoch/a"] == counts["a"]
    assert counts == {"a": 24, "b": 24}
