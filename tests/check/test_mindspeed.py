"""Configurations of MindSpeed-MM as they stand, looked at: what training would get, and what is wrong with it."""

import json
import runpy
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

import thalweg as tw
from reference_files import ROOT, STARTS, reference
from thalweg.cli import cli

pytestmark = pytest.mark.slow
pytest.importorskip("datasets")
pytest.importorskip("av")
pytest.importorskip("soundfile")
COUNT = 15


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """Both configurations of the reference document in a folder with the data and the models that they name."""
    from thalweg.bind.mindspeed import load_config

    folder = tmp_path_factory.mktemp("job")
    data, models = (runpy.run_path(str(ROOT / "examples" / "mindspeed" / f"{name}.py")) for name in ("data", "models"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name in STARTS:
            Path(name).write_text(reference(name), "utf-8")
            told = load_config(name).dataset_param
            path = told["preprocess_parameters"]["model_name_or_path"]
            models["make"](path, path)
            data["make"](told["basic_parameters"]["dataset"], told["basic_parameters"]["dataset_dir"], COUNT)
        yield folder


@pytest.fixture(autouse=True)
def _there(job, monkeypatch):
    monkeypatch.chdir(job)


@pytest.mark.parametrize("name", STARTS)
def test_a_configuration_as_it_stands_has_no_error(name):
    report = tw.doctor(name, 40)
    assert report.ok, str(report)
    told = {finding.check: finding.level for _, finding in report.verdicts}
    for check in ("ids inside the embedding table", "prompts off the loss", "answers end", "batches can be made"):
        assert told[check] == "ok", (check, told)


def test_a_fault_in_the_data_or_in_a_key_is_found_and_the_command_ends_with_one():
    told = json.loads(Path("data_7b.json").read_text("utf-8"))
    told["dataset_param"]["basic_parameters"]["train_on_prompt"] = True
    Path("prompts.json").write_text(json.dumps(told))
    done = CliRunner().invoke(cli, ["doctor", "prompts.json", "-n", "40", "--json"])
    assert done.exit_code == 1, done.output
    found = json.loads(done.stdout)
    assert "prompts off the loss" in {f["check"] for f in found["findings"] if f["level"] == "error"}


@pytest.mark.parametrize("name", STARTS)
def test_profile_measures_a_configuration_as_it_stands(name):
    done = CliRunner().invoke(cli, ["profile", name, "--steps", "4", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["batches"] == 4
    (label,) = found["costs"]["maps"]  # its calls may all have run before the clock: so many go ahead
    assert "fn=Preprocessing" in label
    assert found["costs"]["collate"] > 0
    assert set(found["rates"]) >= {"as it is", "without functions", "without training"}
    assert found["verdict"].startswith("preprocessing is")


@pytest.mark.parametrize("name", STARTS)
def test_tune_tries_a_configuration_as_it_stands_and_writes_what_it_found_beside(name):
    was = Path(name).read_text("utf-8")
    done = CliRunner().invoke(cli, ["tune", name, "--seconds", "1", "--steps", "2", "--json", "--write", "best.yaml"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["title"] == f"{name}:train"
    assert all(trial["rate"] > 0 for trial in found["tried"])
    assert yaml.safe_load(Path("best.yaml").read_text("utf-8")) == found["settings"]
    assert Path(name).read_text("utf-8") == was


# F11
def test_story_11_mindspeed_mm(capsys):
    from thalweg.bind.mindspeed import build_mm_dataloader, build_mm_dataset, load_config

    cfg = load_config("data_7b.json")
    print(cfg)
    ds = build_mm_dataset(cfg.dataset_param)
    dl = build_mm_dataloader(
        ds, cfg.dataloader_param, micro_batch_size=1, seq_length=4096, num_workers=8, seed=42
    )  # fmt: skip
    assert (
        not {"micro_batch_size", "num_workers", "seed"} & cfg.dataloader_param.keys()
    )  # words of the call, not JSON's
    seen = [batch["input_ids"].shape[0] for batch in dl]
    dl.close()
    assert seen == [1] * COUNT
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("data_7b.json: megatron")
    assert any("async_preprocess_buffer_size" in line and "used" in line for line in lines)
