"""A feed as settings: the way into a file and back changes nothing, for every stage that there is."""

import inspect
from dataclasses import fields

import numpy as np
import pytest

import thalweg as tw
from thalweg.core.errors import ConfigError
from thalweg.feed import open as openers
from thalweg.feed import stages as st
from thalweg.feed.config import config_of, feed_of, resolved, sources, verbs
from thalweg.feed.feed import Feed


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Records, files and a module of code, by relative names."""
    monkeypatch.chdir(tmp_path)
    with tw.create_records("rec") as w:
        for i in range(8):
            w.write({"input_ids": np.arange(i + 2, dtype=np.int32)}, id=f"d{i}")
    (tmp_path / "rows.jsonl").write_text('{"input_ids": [1, 2], "x": 3}\n{"input_ids": [4], "x": 5}\n')
    (tmp_path / "config_code.py").write_text(
        "def same(s): return s\n"
        "def info(s, info): return s\n"
        "def keep(n): return n > 2\n"
        "def stream(): return iter([{'input_ids': [1]}])\n"
        "def stack(rows): return {'n': len(rows)}\n"
        "rows = [{'input_ids': [1, 2]}, {'input_ids': [3]}]\n"
        "class Plus:\n"
        "    def __init__(self, by=1): self.by = by\n"
        "    def __call__(self, s): return s\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


REC = {"from_records": "rec"}
# the stage -> feeds that between them set each of its fields to something else than its default
EXAMPLES = {
    st.From: [
        [{"from_records": {"records": "rec", "columns": ["input_ids"]}}],
        [{"from_files": {"files": ["rows.jsonl"], "format": "jsonl", "id": "x", "columns": ["input_ids", "x"]}}],
        [{"from_dataset": {"obj": "config_code:rows", "fingerprint": "f", "lengths": [2, 1]}}],
    ],
    st.FromStream: [[{"from_stream": {"make": "config_code:stream", "shards": 4, "shard_by": "sample"}}]],
    st.Concat: [[{"concat": {"sources": {"a": REC, "b": [REC, {"repeat": {"n": 2}}]}}}]],
    st.Mix: [
        [{"mix": {"weights": {"a": 0.25, "b": 0.75}, "by": "tokens", "on_exhausted": "stop_all", "seed": 5,
                  "sources": {"a": REC, "b": [REC, {"take": {"n": 4}}]}}}],
        [{"mix": {"weights": [[0, {"a": 1, "b": 2}], [1000, {"a": 2, "b": 1}]], "at": "tokens",
                  "sources": {"a": REC, "b": REC}}}],
    ],
    st.Take: [[REC, {"take": {"n": 3}}]],
    st.Skip: [[REC, {"skip": {"n": 3}}]],
    st.Select: [[REC, {"select": {"indices": [3, 1]}}]],
    st.Split: [
        [REC, {"split": {"shares": {"a": 0.5, "b": 0.5}, "part": "b", "seed": 3}}],
        [REC, {"split": {"shares": {"a": 0.5, "b": 0.5}, "part": "a"}}, {"split": {"shares": {"c": 0.5}, "part": "c"}}],
    ],
    st.Repeat: [[{"concat": {"sources": {"b": [REC, {"repeat": {"n": 2}}]}}}]],
    st.Shuffle: [[REC, {"shuffle": {"seed": 3, "buffer_size": 100, "locality": 2}}]],
    st.Map: [
        [REC, {"map": {"fn": "config_code:same", "batched": 16, "remove_columns": ["input_ids"], "workers": 3,
                       "mode": "threads", "on_error": "quarantine", "max_bad": 5, "quarantine": "bad",
                       "timeout": 2.5, "length": "same", "ahead": 64}}],
        [REC, {"map": {"fn": "config_code:info", "with_info": True, "input_columns": ["input_ids"],
                       "output_columns": ["labels"]}}],
        [REC, {"map": {"fn": {"config_code:Plus": {"by": 2}}}}],
    ],
    st.Filter: [
        [REC, {"filter": {"fn": "config_code:keep", "columns": ["length"]}}],
        [REC, {"filter": {"fn": "config_code:info", "with_info": True}}],
    ],
    st.Cache: [
        [REC, {"cache": {"path": "c", "what": "lengths", "scope": "shared"}}],
        [REC, {"cache": {"max_bytes": "2GB"}}],
    ],
    st.Pack: [[REC, {"pack": {"capacity": 64, "policy": "window_16", "overlong": "drop", "align": 2, "max_docs": 4,
                              "repack": "never"}}]],
    st.Balance: [[REC, {"balance": {"by": "tokens", "window": 8, "run": 4, "a": 2.0, "b": 0.5}}]],
    st.Batch: [
        [REC, {"batch": {"size": 2, "pad": "left", "pad_to": 16, "pad_to_multiple_of": 8, "pad_id": 1,
                         "collate": "megatron"}}],
        [REC, {"batch": {"size": 2, "collate": "config_code:stack"}}],
        [REC, {"batch": {"size": [[0, 2], [1000, 4]], "dtype": "int32"}}],
    ],
    st.Bucket: [[REC, {"bucket": {"boundaries": [4, 8], "sizes": [4, 2, 1], "remainder": "drop", "pad": "left",
                                  "pad_to": "boundary", "pad_to_multiple_of": 8, "pad_id": 1, "collate": "raw"}}],
                [REC, {"bucket": {"boundaries": [4], "sizes": [4, 2], "dtype": "int32"}}]],
    st.TokenBudget: [[REC, {"token_budget": {"tokens": 64, "window": 4, "pad": "left", "pad_to_multiple_of": 8,
                                             "pad_id": 1, "collate": "raw"}}],
                     [REC, {"token_budget": {"tokens": 64, "dtype": "int32"}}]],
}  # fmt: skip
ALL = [(kind, config) for kind in EXAMPLES for config in EXAMPLES[kind]]


@pytest.mark.parametrize(("kind", "config"), ALL, ids=lambda v: getattr(v, "__name__", ""))
def test_the_way_from_a_file_to_a_feed_and_back_changes_nothing(data, kind, config):
    feed = feed_of(config, "test")
    assert config_of(feed) == config
    assert config_of(feed_of(feed.to_config(), "again")) == config


def test_every_stage_has_an_example_that_sets_each_of_its_fields(data):
    kinds = st.Stage.__subclasses__()
    assert set(kinds) == set(EXAMPLES)
    for kind in kinds:
        feeds = [feed_of(config, "test") for config in EXAMPLES[kind]]
        there = [
            s for f in feeds for part in (f, *dict(getattr(f.stages[0], "feeds", ())).values()) for s in part.stages
        ]
        mine = [s for s in there if isinstance(s, kind)]
        told = {f.name for f in fields(kind) for s in mine if getattr(s, f.name) != f.default}
        assert told == {f.name for f in fields(kind)}, kind


def test_every_opener_and_every_verb_is_a_word_of_a_file():
    assert set(sources()) == {n for n in vars(openers) if n.startswith("from_")}
    methods = {
        name for name, fn in vars(Feed).items()
        if not name.startswith("_") and inspect.isfunction(fn) and fn.__annotations__.get("return") == "Feed"
    }  # fmt: skip
    assert methods - {"group_by_length"} <= set(verbs())


def test_a_feed_written_in_python_has_the_same_settings_as_the_file(data):
    import config_code

    feed = tw.from_records("rec").map(config_code.same, length="same").shuffle(3).pack(64).batch(2)
    assert feed.to_config() == [
        {"from_records": "rec"},
        {"map": {"fn": "config_code:same", "length": "same"}},
        {"shuffle": {"seed": 3}},
        {"pack": {"capacity": 64}},
        {"batch": {"size": 2}},
    ]
    again = feed_of(feed.to_config(), "test")
    assert [b["input_ids"].tolist() for b in again] == [b["input_ids"].tolist() for b in feed]
    assert again.fingerprint == feed.fingerprint


def test_what_has_no_name_is_refused_and_not_written_down_wrongly(data):
    with pytest.raises(ConfigError, match=r"lambda.*has no name that a file could say"):
        tw.from_records("rec").map(lambda s: s).to_config()
    with pytest.raises(ConfigError, match="data in memory has no name"):
        tw.from_dataset([{"input_ids": [1]}]).to_config()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ([{"from_record": "rec"}], "unknown source 'from_record'.*did you mean 'from_records'"),
        ([REC, {"shufle": {}}], "unknown stage 'shufle'.*did you mean 'shuffle'"),
        ([REC, {"pack": {"capasity": 3}}], "pack takes no 'capasity'.*did you mean 'capacity'"),
        ([REC, {"pack": {}}], "pack needs 'capacity'"),
        ([{"shuffle": {}}], "'shuffle' cannot be the first stage"),
        ([REC, {"map": {"fn": "config_code:sane"}}], "config_code has no 'sane'.*did you mean 'same'"),
        ([REC, {"map": {"fn": "no_such_module:f"}}], "module 'no_such_module' cannot be loaded"),
        (
            [REC, {"map": {"fn": {"ChatEncoder": {"tokenizer": "x"}}}}],
            "ChatEncoder takes no 'tokenizer'.*'tokenizer_or_path'",
        ),
        ([REC, {"split": {"shares": {"a": 1.0}, "part": "c"}}], "no part 'c'"),
        ([{"mix": {"weights": {"a": 1}}}], "mix takes sources by name"),
        ([{"mix": {"weight": {"a": 1}, "sources": {"a": REC}}}], "mix takes no 'weight'.*'weights'"),
        ([REC, {"a": 1, "b": 2}], "no name with its settings"),
        ([], "a feed without stages"),
    ],
)
def test_a_wrong_word_is_refused_with_the_nearest_right_one(data, config, message):
    with pytest.raises(ConfigError, match=message):
        feed_of(config, "test")


def test_the_resolved_whole_names_every_setting_and_builds_the_same_feed(data):
    for _, config in ALL:
        whole = resolved(config)
        assert config_of(feed_of(whole, "test")) == config
    batch = resolved([REC, {"batch": {"size": 2}}])[1]["batch"]
    assert set(batch) == {n for n in inspect.signature(Feed.batch).parameters if n != "self"}
    assert batch["pad"] == "right"
