"""`tw.load_config`: what wins, how a dotted word finds its place, and that nothing unknown passes."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as hs

import thalweg as tw
from thalweg.bind.config import Config, load_config
from thalweg.check.target import load_target
from thalweg.cli import cli
from thalweg.core.errors import ConfigError, InputError
from thalweg.core.topology import Topology
from thalweg.store.settings import parse_settings

DATA = """
train:
  - mix:
      weights: {web: 0.7, no: 0.3}
      by: tokens
      sources: {web: {from_records: rec}, no: {from_records: rec}}
  - shuffle: {}
  - pack: {capacity: 16, policy: concat_split}
  - batch: {size: 4}
val:
  - from_records: rec
  - batch: {size: 4}
loader:
  train: {epochs: null, max_steps: 6, seed: 1}
  val: {tail: pad}
"""


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with tw.create_records("rec") as w:
        for i in range(20):
            w.write({"input_ids": np.arange(i % 7 + 2, dtype=np.int32)}, id=f"d{i}")
    (tmp_path / "data.yaml").write_text(DATA)
    return "data.yaml"


def ids(loader):
    return [b.info.ids for b in loader]


def test_a_file_gives_the_loader_that_python_gives(path):
    cfg = tw.load_config(path)
    feeds = {"web": tw.from_records("rec"), "no": tw.from_records("rec")}
    feed = (
        tw.mix(feeds, weights={"web": 0.7, "no": 0.3}, by="tokens").shuffle().pack(16, policy="concat_split").batch(4)
    )
    by_hand = tw.Loader(feed, epochs=None, max_steps=6, seed=1, topology=Topology())
    assert ids(cfg.loader("train", topology=Topology())) == ids(by_hand)
    assert cfg.feed("val").num_rows == 20
    assert load_config(path).feed("train").fingerprint == feed.fingerprint


def test_the_command_line_wins_over_the_environment_over_the_file_over_the_default(path):
    env = {"THALWEG_LOADER__TRAIN__SEED": "2", "THALWEG_TRAIN__BATCH__SIZE": "3", "THALWEG_CACHE": "elsewhere"}
    cfg = load_config(path, ["loader.train.seed=5", "train.pack.capacity=32"], environ=env)
    whole = cfg.resolved()
    assert whole["loader"]["train"]["seed"] == 5  # command line
    assert whole["train"][3]["batch"]["size"] == 3  # environment
    assert whole["loader"]["train"]["max_steps"] == 6  # file
    assert whole["loader"]["val"]["epochs"] == 1  # default
    assert whole["train"][2]["pack"]["capacity"] == 32
    assert load_config(path, environ={"THALWEG_LOADER__TRAIN__SEED": "2"}).resolved()["loader"]["train"]["seed"] == 2


def test_a_word_finds_mixes_single_values_and_verbs_used_twice(path, tmp_path):
    words = ["train.mix.weights.web=0.5", "train.mix.sources.web.from_records.columns=[input_ids]", "val.1=null"]
    with pytest.raises(ConfigError, match="batch needs 'size'"):
        load_config(path, words).feed("val")
    cfg = load_config(path, words[:2])
    assert cfg.settings["train"][0]["mix"]["weights"] == {"web": 0.5, "no": 0.3}
    assert cfg.feed("train").to_config()[0]["mix"]["sources"]["web"] == {
        "from_records": {"records": "rec", "columns": ["input_ids"]}
    }
    (tmp_path / "twice.yaml").write_text(
        "train: [{from_records: rec}, {map: {fn: 'twice_code:a'}}, {map: {fn: 'twice_code:a'}}]\n"
    )
    (tmp_path / "twice_code.py").write_text("def a(s): return s\n")
    with pytest.raises(ConfigError, match="'map' stands at 1, 2"):
        load_config("twice.yaml", ["train.map.workers=8"])
    stages = load_config("twice.yaml", ["train.2.workers=8"]).feed("train").stages
    assert [s.workers for s in stages[1:]] == ["auto", 8]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("train.pack.capasity=3", "unknown word 'capasity'.*did you mean 'capacity'"),
        ("trian.pack.capacity=3", "unknown word 'trian'.*did you mean 'train'"),
        ("train.pak.capacity=3", "unknown word 'pak'.*did you mean 'pack'"),
        ("loader.train.sed=3", "unknown word 'sed'.*did you mean 'seed'"),
        ("loader.trian.seed=3", "unknown word 'trian'.*did you mean 'train'"),
        ("train.mix.weigths.web=3", "unknown word 'weigths'.*did you mean 'weights'"),
        ("train.9.size=3", "there is no stage 9"),
        ("train.pack.capacity.x=3", "holds no settings of its own"),
        ("train.pack", "is no setting"),
        ("loader.train=3", "three words"),
    ],
)
def test_a_word_without_a_place_is_refused_with_the_nearest(path, word, message):
    with pytest.raises(ConfigError, match=message):
        load_config(path, [word])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("loader:", "loadr:"), "'loadr' is no list of stages.*'loader'"),
        (("val: {tail", "vel: {tail"), "unknown feed 'vel'.*did you mean 'val'"),
        (("tail: pad", "tale: pad"), "Loader takes no 'tale'.*did you mean 'tail'"),
        (("  val: {tail: pad}", "  val: {tail: pad}\n  val: {}"), "the key 'val' stands twice"),
        (("val:\n  - from_records: rec", "val: ["), "not YAML"),
    ],
)
def test_a_wrong_file_is_refused_where_it_is_wrong(path, tmp_path, change, message):
    (tmp_path / "data.yaml").write_text(DATA.replace(*change))
    with pytest.raises(ConfigError, match=message):
        load_config(path)


def test_an_unknown_word_of_the_environment_is_refused_and_other_variables_are_left_alone(path):
    with pytest.raises(ConfigError, match=r"THALWEG_LOADER__TRAIN__SED.*did you mean 'seed'"):
        load_config(path, environ={"THALWEG_LOADER__TRAIN__SED": "2"})
    load_config(path, environ={"THALWEG_CACHE": "x", "OTHER__TRAIN__SED": "2"})
    with pytest.raises(InputError, match="no such file"):
        load_config("nowhere.yaml")


# K05
@given(hs.sampled_from(["no", "on", "2024-01-02", "1:30", "20e9", "1e-5", "0x10", "true", "null", "012", "-3", ".5"]))
def test_yaml_reads_words_as_text_and_numbers_as_numbers(text):
    right = {"20e9": 20e9, "1e-5": 1e-5, "0x10": 16, "true": True, "null": None, "-3": -3, ".5": 0.5, "012": 12.0}
    assert parse_settings(f"a: {text}", "test")["a"] == right.get(text, text)


def test_json_and_yaml_of_one_content_are_one_configuration(path, tmp_path):
    cfg = load_config(path)
    (tmp_path / "data.json").write_text(json.dumps(cfg.to_dict()))
    assert load_config("data.json").resolved() == cfg.resolved()
    (tmp_path / "again.yaml").write_text(str(cfg))
    assert load_config("again.yaml").to_dict() == cfg.to_dict()
    (tmp_path / "bad.json").write_text('{"train": [], "train": []}')
    with pytest.raises(ConfigError, match="the key 'train' stands twice"):
        load_config("bad.json")


def test_the_resolved_whole_is_in_the_lineage_and_beside_the_ledger(path, tmp_path):
    cfg = load_config(path, ["loader.val.ledger=led"])
    loader = cfg.loader("val", topology=Topology())
    assert loader.lineage["settings"] == cfg.resolved()
    assert "pad_id" in loader.lineage["sources"]["rec"] or loader.lineage["sources"]["rec"] == {}
    list(loader)
    loader.close()
    (kept,) = (tmp_path / "led").glob("settings.*.json")
    assert json.loads(kept.read_text()) == json.loads(json.dumps(cfg.resolved(), default=str))


def test_commands_take_a_file_of_settings_and_words_and_show_the_resolved_whole(path):
    run = CliRunner().invoke(
        cli, ["simulate", path, "train.batch.size=2", "loader.train.seed=3", "--world", "2", "--json"]
    )
    assert run.exit_code == 0, run.output
    answer = json.loads(run.stdout)
    assert answer["settings"]["train"][3]["batch"]["size"] == 2
    assert answer["settings"]["loader"]["train"]["seed"] == 3
    assert answer["result"][0]["world"] == 2
    run = CliRunner().invoke(cli, ["why", f"{path}:val", "val.batch.size=2", "--step", "1", "--json"])
    assert json.loads(run.stdout)["result"][0]["rows"][0][0]["id"] == "d2"
    words = ["train.batch.size=2", "loader.train.seed=3", "--step", "1", "--json"]
    run = CliRunner().invoke(cli, ["inspect", path, *words])
    assert run.exit_code == 0, run.output
    shown = json.loads(run.stdout)["result"]
    want = load_config(path, words[:2]).loader("train", topology=Topology())
    step = [b for b in want if b.info.step == 1]
    assert [s["title"].rpartition(":")[2].strip() for s in shown["samples"]] or shown
    assert len(shown["samples"]) == sum(len(b["input_ids"]) for b in step)
    run = CliRunner().invoke(cli, ["simulate", path, "train.batch.sise=2"])
    assert run.exit_code == 1
    assert "did you mean 'size'" in run.output
    run = CliRunner().invoke(cli, ["simulate", "x.py:feed", "train.batch.size=2"])
    assert run.exit_code == 1
    assert "is a word for a file of settings" in run.output


def test_a_file_alone_names_its_train_feed_and_another_by_name(path, tmp_path):
    assert load_target(path).feed.to_config() == load_config(path).feed("train").to_config()
    assert load_target(f"{path}:val").feed.num_rows == 20
    assert Config({"only": [{"from_records": "rec"}]}).default() == "only"
    with pytest.raises(ConfigError, match="none called 'train'"):
        Config({"a": [{"from_records": "rec"}], "b": [{"from_records": "rec"}]}).default()
