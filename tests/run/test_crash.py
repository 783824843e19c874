"""A crash at every single act of a run, on both kinds of store: nothing half, nothing twice, nothing lost."""

import json
import os
import shutil
from pathlib import Path

import pytest

from thalweg.run import LocalPipelineExecutor
from thalweg.run.objects import Objects
from thalweg.steps import JsonlReader, JsonlWriter, LambdaFilter

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")]


class Crash(BaseException):
    """The machine stops."""


ACTS = ("link", "rename", "replace", "fsync", "mkdir", "unlink", "rmdir", "write")


def keep(doc):
    return doc.metadata["n"] < 40


def launch(corpus, out, log, options=None):
    steps = [JsonlReader(str(corpus)), LambdaFilter(keep)]
    size = -1 if options else 4_000
    steps.append(JsonlWriter((out, options) if options else out, compression=None, max_file_size=size))
    return LocalPipelineExecutor(steps, 2, 1, (log, options) if options else log).run()


def seen(out):
    return {str(p.relative_to(out)): p.read_text() for p in out.rglob("*") if p.is_file()} if out.exists() else {}


class Countdown:
    """Lets so many acts happen; the next one crashes, and no later act happens either."""

    def __init__(self, left, *, after=False):
        self.left, self.after = left, after

    def __call__(self, real):
        def call(*args, **kwargs):
            self.left -= 1
            if self.left < 0:
                if self.after and self.left == -1:
                    real(*args, **kwargs)  # it happened, and nobody has heard the answer
                raise Crash
            return real(*args, **kwargs)

        return call


# D15
def test_a_crash_at_every_single_step_of_a_run_is_harmless(tmp_path, corpus, monkeypatch):
    whole = tmp_path / "whole"
    launch(corpus, str(whole / "out"), str(whole / "log"))
    wanted = seen(whole / "out")
    crashes = at = 0
    while True:
        home = tmp_path / "crash"
        home.mkdir()
        guard = Countdown(at)
        with monkeypatch.context() as patch:
            for name in ACTS:
                patch.setattr(os, name, guard(getattr(os, name)))
            try:
                launch(corpus, str(home / "out"), str(home / "log"))
                break
            except Crash:
                crashes += 1
        assert all(wanted[name] == text for name, text in seen(home / "out").items())  # never half a file
        stats = launch(corpus, str(home / "out"), str(home / "log"))
        assert seen(home / "out") == wanted
        assert stats[0].tally.made == 400
        assert [p.name for p in (home / "log/attempts/g0").iterdir()] == [".generation"]
        shutil.rmtree(home)
        at += 1 if at < 12 else 3
    assert crashes > 15
    assert Path(home / "log/stats.json").exists()


# D15
@pytest.mark.parametrize("after", [False, True])
def test_a_crash_at_every_single_request_of_a_run_is_harmless(tmp_path, corpus, monkeypatch, bucket, after):
    url, options = bucket
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    launch(corpus, f"{url}/whole/out", f"{url}/whole/log", options)
    store = Objects(f"{url}/whole/out", options)
    wanted = {name: store.get(name).decode() for name, _, _ in store.names("")}
    assert len(wanted) == 2
    crashes = 0
    for at in range(after, 200, 2):  # the odd ones are tried after, the even ones before they happen
        home = f"{url}/{after}{at}"
        with monkeypatch.context() as patch:
            patch.setattr(Objects, "_call", Countdown(at, after=after)(Objects._call))
            try:
                launch(corpus, f"{home}/out", f"{home}/log", options)
                break
            except Crash:
                crashes += 1
        store = Objects(f"{home}/out", options)
        assert {name: store.get(name).decode() for name, _, _ in store.names("")}.items() <= wanted.items()
        stats = launch(corpus, f"{home}/out", f"{home}/log", options)
        assert {name: store.get(name).decode() for name, _, _ in store.names("")} == wanted
        assert list(store.uploads()) == []
        assert stats[0].tally.made == 400
        log = Objects(f"{home}/log", options)
        assert sorted(name for name, _, _ in log.names("completions/")) == ["completions/00000", "completions/00001"]
        assert json.loads(log.get("stats.json"))["ranks"] == 2
    assert crashes > 8
