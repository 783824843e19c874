"""Credentials never stand in a run's record, however deep a step holds them, and no launch writes them to a file."""

import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from thalweg.cli import cli
from thalweg.core.document import Document
from thalweg.core.errors import ConfigError
from thalweg.run import SlurmPipelineExecutor
from thalweg.run.credentials import refuse_credentials
from thalweg.run.manifest import describe_pipeline, differences
from thalweg.steps import JsonlReader, JsonlWriter, LambdaFilter

SECRET = "wJalrXUtnFEMI-K7MDENG"
OPTIONS = {"key": "AKIAIOSFODNN7EXAMPLE", "secret": SECRET}
API_KEY = SECRET


class Asks:
    def __init__(self, secret, eos_token="</s>"):
        self.api_key, self.eos_token, self.by_name = secret, eos_token, {"db_password": secret, "size": 3}

    def __call__(self, data, rank, world_size):
        yield from data


def pipelines(secret=SECRET):
    """Each holds a credential in another place."""
    options = OPTIONS | {"secret": secret}
    far = ("s3://bucket/out", options)

    def closure(doc, token=secret):
        return token and options and doc

    return {
        "reader": JsonlReader(("s3://bucket/in", options)),
        "writer": JsonlWriter(far),
        "exclusion writer": LambdaFilter(len, exclusion_writer=JsonlWriter(far)),
        "quarantine": JsonlReader("in", on_error="quarantine", quarantine=far),
        "nested options": JsonlWriter(("s3://bucket/out", {"client_kwargs": {"aws_secret_access_key": secret}})),
        "URL": JsonlReader(f"ftp://me:{secret}@host/in"),
        "object": Asks(secret),
        "function": LambdaFilter(closure),
        "pair in a function": LambdaFilter(lambda doc: far and doc),
    }


def uses_a_global(doc):
    return API_KEY and doc


@pytest.mark.parametrize("place", pipelines())
def test_no_credential_is_in_the_record_of_a_run_and_a_new_one_is_no_other_run(place):
    known = describe_pipeline([pipelines()[place]])
    assert SECRET not in json.dumps(known)
    assert OPTIONS["key"] not in json.dumps(known)
    assert differences({"steps": known}, {"steps": describe_pipeline([pipelines("another")[place]])}) == []


def test_a_credential_at_the_top_of_a_script_is_not_in_the_record():
    assert SECRET not in json.dumps(describe_pipeline([LambdaFilter(uses_a_global)]))


def test_what_only_sounds_like_a_credential_still_belongs_to_the_run():
    a, b = (describe_pipeline([Asks(SECRET, eos)]) for eos in ("</s>", "<end>"))
    assert differences({"steps": a}, {"steps": b}) == ["steps.0:Asks.eos_token: '</s>' -> '<end>'"]
    keys = [describe_pipeline([JsonlReader("in", default_metadata={"key": key})]) for key in "ab"]
    assert len(differences({"steps": keys[0]}, {"steps": keys[1]})) == 1


IN_OPTIONS = ["reader", "writer", "exclusion writer", "quarantine", "nested options", "function", "pair in a function"]


@pytest.mark.parametrize("place", IN_OPTIONS)
def test_options_with_credentials_are_refused_at_any_depth_and_the_value_is_not_told(place):
    if place == "function":
        steps = [lambda data, rank, world_size, far=("s3://b/c", OPTIONS): data]
    else:
        steps = [pipelines()[place]]
    with pytest.raises(ConfigError, match="may hold credentials") as told:
        refuse_credentials("-", steps)
    assert SECRET not in str(told.value)


@dataclass(slots=True)
class Settings:
    password: str
    db: dict


class Reads:
    """Keeps its key out of what is pickled."""

    def __init__(self):
        self.api_key, self.eos_token = SECRET, "</s>"

    def __getstate__(self):
        return {"eos_token": self.eos_token}

    def __call__(self, data, rank, world_size):
        yield from data


def of_key_shape(doc):
    return doc.id != "hf_abcdefghijklmnopqrstuvwxyzABCDEFGH"


HELD = {
    "attribute": (lambda: Asks(SECRET), r"Asks\.api_key"),
    "argument of a block": (lambda: LambdaFilter(len, exclusion_writer=Asks(SECRET)), r"Asks\.api_key"),
    "key of a dict": (
        lambda: LambdaFilter(Settings("", {"inner": {"db_password": SECRET}})),
        r"Settings\.db\.inner\.db_",
    ),
    "slot": (lambda: LambdaFilter(Settings(SECRET, {})), r"Settings\.password"),
    "URL": (lambda: JsonlReader(f"ftp://me:{SECRET}@host/in"), r"data_folder"),
    "default of an argument": (lambda: LambdaFilter(lambda doc, token=SECRET: doc), r"<lambda>\.token"),
    "top of a script": (lambda: LambdaFilter(uses_a_global), r"uses_a_global\.API_KEY"),
    "text in the code": (lambda: LambdaFilter(of_key_shape), r"of_key_shape"),
}


@pytest.mark.parametrize("place", HELD)
def test_a_credential_that_a_step_holds_is_refused_with_its_place_and_the_remedy(place):
    make, told_place = HELD[place]
    with pytest.raises(ConfigError, match=told_place) as told:
        refuse_credentials("the jobs see it", [make()])
    assert "read it from the environment where it is used, in run(): the jobs see it" in str(told.value)
    assert SECRET not in str(told.value)


SCRIPT = """
from thalweg.run import JobsPipelineExecutor, LocalPipelineExecutor, SlurmPipelineExecutor
from thalweg.steps import JsonlReader, JsonlWriter

class Asks:
    def __init__(self, api_key):
        self.api_key = api_key
    def __call__(self, data, rank, world_size):
        yield from data

def seen(data, rank, world_size):
    yield from (doc for doc in data if doc.text != "s3cr3t-of-the-feed")

steps = [JsonlReader({corpus!r}), {step}, JsonlWriter("out")]
{executor}.run()
"""
LAUNCHES = {
    "slurm": (
        'Asks("wJalrXUtnFEMI")',
        'SlurmPipelineExecutor(steps, 2, "1:00", "debug", logging_dir="log")',
        "api_key",
    ),
    "jobs": ('Asks("wJalrXUtnFEMI")', 'JobsPipelineExecutor(steps, 2, logging_dir="log")', "api_key"),
    "a secret of the jobs": (
        "seen",
        'JobsPipelineExecutor(steps, 2, logging_dir="log", secrets={"KEY": "s3cr3t-of-the-feed"})',
        "secret KEY",
    ),
    "here": ('Asks("wJalrXUtnFEMI")', 'LocalPipelineExecutor(steps, 2, logging_dir="log")', None),
    "not sent": (
        'Asks(__import__("threading").Lock())',
        'LocalPipelineExecutor(steps, 2, logging_dir="log")',
        "cannot be sent",
    ),
}


@pytest.mark.parametrize("launch", LAUNCHES)
def test_explain_says_that_a_launch_would_be_refused_for_what_it_would_write(tmp_path, corpus, monkeypatch, launch):
    if "jobs" in launch:
        pytest.importorskip("huggingface_hub")
    step, executor, told = LAUNCHES[launch]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.py").write_text(SCRIPT.format(corpus=str(corpus), step=step, executor=executor))
    done = CliRunner().invoke(cli, ["explain", "job.py"])
    assert done.exit_code == 0
    assert ("REFUSED" in done.stdout) == (told is not None)
    assert told is None or told in done.stdout
    assert "wJalr" not in done.stdout
    assert "s3cr3t" not in done.stdout
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in", "job.py"]


def test_what_is_not_pickled_or_is_data_is_no_credential_of_a_step():
    module, logger = os, logging.getLogger("a")

    def captures(data, rank, world_size):
        logger.info(module.sep)
        yield from data

    documents = [Document("text", "a", [], {"password": "of the page", "access_token": "x"})]
    refuse_credentials("-", [documents, Reads(), captures])


def test_options_without_credentials_pass():
    plain = ("s3://bucket/out", {"endpoint_url": "http://x", "config_kwargs": {"retries": {"max_attempts": 1}}})
    refuse_credentials("-", [JsonlWriter(plain), Reads(), LambdaFilter(lambda doc: {"key": 1} and doc)], plain)


def test_folders_of_the_datatrove_package_are_looked_into():
    pytest.importorskip("s3fs")
    io = pytest.importorskip("datatrove.io")
    folder = io.DataFolder("s3://bucket/out", **OPTIONS)
    step = Asks("")
    step.output_folder = folder
    assert SECRET not in json.dumps(describe_pipeline([step]))
    with pytest.raises(ConfigError, match=r"may hold credentials \(key, secret\)"):
        refuse_credentials("-", [step])


def test_what_a_launch_hands_to_a_cluster_can_be_read_by_nobody_else(tmp_path, corpus, monkeypatch):
    stub = tmp_path / "bin/sbatch"
    stub.parent.mkdir()
    stub.write_text("#!/bin/sh\necho Submitted batch job 7\n")
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{stub.parent}:{os.environ['PATH']}")
    before = os.umask(0)
    try:
        steps = [JsonlReader(str(corpus)), JsonlWriter(str(tmp_path / "out"))]
        SlurmPipelineExecutor(steps, 2, "1:00", "p", logging_dir=str(tmp_path / "log")).run()
    finally:
        os.umask(before)
    handed = {p.name: p.stat().st_mode & 0o777 for p in Path(tmp_path / "log/launches").rglob("*.[ps]*") if p.is_file()}
    assert handed == {"executor.pik": 0o600, "launch_script.slurm": 0o600, "finish_script.slurm": 0o600}


def test_a_launch_on_a_cluster_refuses_them_before_it_writes_anything(tmp_path, corpus):
    options = {"key": "test", "secret": "test", "endpoint_url": "http://127.0.0.1:9"}
    steps = [
        JsonlReader(str(corpus)),
        LambdaFilter(bool, on_error="quarantine", quarantine=str(tmp_path / "bad")),
        lambda data, rank, world_size, other=("s3://bucket/words", options): data,
        JsonlWriter(str(tmp_path / "out")),
    ]
    executor = SlurmPipelineExecutor(steps, 2, "1:00", "p", logging_dir=str(tmp_path / "log"))
    with pytest.raises(ConfigError, match="sbatch hands the environment on"):
        executor.run()
    written = [p for p in (tmp_path / "log").rglob("*") if p.is_file()]
    assert not [p for p in written if p.suffix == ".pik"]
