"""How one attempt's work becomes visible: each rule whose lack killed a simpler design, and a crash at every step."""

import json
import os
import shutil
from pathlib import Path

import msgspec
import pytest

from thalweg.core.errors import IntegrityError, RunError
from thalweg.run import LocalPipelineExecutor
from thalweg.run.commit import commit, publish, record, sweep
from thalweg.run.ledger import Ledger, newest, settle, start
from thalweg.steps import JsonlReader, JsonlWriter, LambdaFilter
from thalweg.store.claim import create_once, make_generation_dir

RECORD = {"manifest": {"tasks": 1}, "tasks": 1, "outside": [], "fresh_outputs": True}


@pytest.fixture
def ledger(tmp_path):
    (tmp_path / "log").mkdir()
    return start(tmp_path / "log", 0, RECORD)


def attempt_of(ledger, out, files, stats="mine", patterns=None):
    """Make an attempt that wrote these files."""
    attempt = ledger.begin(0)
    stage = attempt.path / "o0"
    for name, content in files.items():
        (stage / name).parent.mkdir(parents=True, exist_ok=True)
        (stage / name).write_text(content)
    record(attempt, {str(out): str(stage)}, {}, {"who": stats}, patterns or {})
    return attempt


def seen(out):
    return {str(p.relative_to(out)): p.read_text() for p in out.rglob("*") if p.is_file()} if out.exists() else {}


# D12
def test_files_appear_then_stats_then_the_empty_mark_and_nothing_is_left(ledger, tmp_path):
    attempt = attempt_of(ledger, tmp_path / "out", {"a": "one", "b/c": "two"})
    assert seen(tmp_path / "out") == {}
    assert commit(ledger, attempt)
    publish(ledger, 0)
    assert seen(tmp_path / "out") == {"a": "one", "b/c": "two"}
    assert json.loads((tmp_path / "log/stats/00000.json").read_text()) == {"who": "mine"}
    assert (tmp_path / "log/completions/00000").read_bytes() == b""
    assert [p.name for p in ledger.attempts.iterdir()] == [".generation"]


def test_a_record_appears_whole_or_not_at_all(tmp_path, monkeypatch):
    def torn(fd, data):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", torn)
        with pytest.raises(OSError, match="No space"):
            create_once(tmp_path / "rec", b"content")
    assert not (tmp_path / "rec").exists()
    assert create_once(tmp_path / "rec", b"content")
    assert not create_once(tmp_path / "rec", b"other")
    assert (tmp_path / "rec").read_bytes() == b"content"


def test_a_commit_whose_answer_was_lost_is_recognised_as_ones_own(ledger, tmp_path):
    attempt = attempt_of(ledger, tmp_path / "out", {"a": "one"})
    assert commit(ledger, attempt)
    assert commit(ledger, attempt)  # the retry reads back its own id: it must not drop its files
    publish(ledger, 0)
    assert seen(tmp_path / "out") == {"a": "one"}


# D16
def test_of_two_attempts_one_counts_with_its_own_files_and_stats_whoever_publishes(ledger, tmp_path):
    a = attempt_of(ledger, tmp_path / "out", {"a": "from a", "a2": "only a"}, "a")
    b = attempt_of(ledger, tmp_path / "out", {"a": "from b"}, "b")
    assert a.path != b.path
    assert commit(ledger, b)
    assert not commit(ledger, a)
    publish(ledger, 0)  # by the loser
    assert seen(tmp_path / "out") == {"a": "from b"}
    assert json.loads((tmp_path / "log/stats/00000.json").read_text()) == {"who": "b"}
    assert ledger.attempts_of(0) == []


# D16
def test_an_attempt_that_wakes_after_its_rank_is_done_changes_nothing(ledger, tmp_path):
    sleeper = attempt_of(ledger, tmp_path / "out", {"a": "old", "z": "old"})
    assert commit(ledger, attempt_of(ledger, tmp_path / "out", {"a": "new"}))
    publish(ledger, 0)
    with pytest.raises(RunError, match="begun this run anew"):
        commit(ledger, sleeper)  # its directory has been swept
    assert seen(tmp_path / "out") == {"a": "new"}


def test_a_file_of_equal_size_from_an_earlier_run_is_replaced(ledger, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/a").write_text("OLD")
    assert commit(ledger, attempt_of(ledger, tmp_path / "out", {"a": "new"}))
    publish(ledger, 0)
    assert seen(tmp_path / "out") == {"a": "new"}


def test_a_published_file_that_was_replaced_is_noticed_before_the_mark(ledger, tmp_path):
    attempt = attempt_of(ledger, tmp_path / "out", {"a": "new"})
    assert commit(ledger, attempt)
    (tmp_path / "out").mkdir()
    os.rename(attempt.path / "o0/a", tmp_path / "out/a")
    (tmp_path / "out/a").write_text("NEW")  # the same size, other bytes
    with pytest.raises(IntegrityError, match="missing, or not whole"):
        publish(ledger, 0)
    assert ledger.marked() == set()


def test_a_descriptor_left_open_cannot_write_into_a_published_file(ledger, tmp_path):
    attempt = ledger.begin(0)
    stage = attempt.path / "o0"
    stage.mkdir()
    with open(stage / "a", "w") as leaked:
        leaked.write("whole")
        leaked.flush()
        record(attempt, {str(tmp_path / "out"): str(stage)}, {}, {}, {})
        assert commit(ledger, attempt)
        publish(ledger, 0)
        leaked.write(" and more")
    assert seen(tmp_path / "out") == {"a": "whole"}


# D12
def test_data_are_durable_before_the_commit_and_the_commit_before_the_first_file_appears(ledger, tmp_path, monkeypatch):
    acts = []

    def spy(name, what):
        real = getattr(os, name)

        def call(*args, **kwargs):
            acts.append((name, what(args)))
            return real(*args, **kwargs)

        monkeypatch.setattr(os, name, call)

    spy("fsync", lambda args: os.readlink(f"/proc/self/fd/{args[0]}"))
    spy("link", lambda args: str(args[1]))
    spy("rename", lambda args: str(args[1]))
    attempt = attempt_of(ledger, tmp_path / "out", {"a": "1", "b": "2"})
    assert commit(ledger, attempt)
    publish(ledger, 0)
    log = tmp_path / "log"
    made = [str(attempt.path / n) for n in ("o0/a", "o0/b", "stats", "mark", "rec")]
    committed = acts.index(("link", str(log / "commits/00000")))
    synced = [path for act, path in acts[:committed] if act == "fsync"]
    assert {*made, str(attempt.path / "o0"), str(attempt.path), str(ledger.attempts)} <= set(synced)
    first = acts.index(("rename", str(tmp_path / "out/a")))
    assert ("fsync", str(log / "commits")) in acts[committed:first]
    marked = acts.index(("rename", str(log / "completions/00000")))
    stats = acts.index(("rename", str(log / "stats/00000.json")))
    assert first < stats < marked
    assert {("fsync", str(tmp_path / "out")), ("fsync", str(log / "stats"))} <= set(acts[stats:marked])
    assert acts[marked + 1] == ("fsync", str(log / "completions"))


# D16 D17
def test_a_new_generation_stops_every_late_act_of_the_old_one(ledger, tmp_path):
    out = tmp_path / "out"
    committed = attempt_of(ledger, out, {"a": "old"})
    working = ledger.begin(0)
    assert commit(ledger, committed)
    newer = start(ledger.root, 1, RECORD | {"manifest": {"tasks": 2}})
    assert commit(newer, attempt_of(newer, out, {"a": "new"}))
    publish(newer, 0)
    for late in (lambda: commit(ledger, working), lambda: ledger.begin(0)):
        with pytest.raises(RunError, match="begun this run anew"):
            late()
    publish(ledger, 0)  # finds the newer generation's mark and does nothing
    assert seen(out) == {"a": "new"}
    assert (ledger.root / "old/g0/commits/00000").exists()


@pytest.mark.parametrize("moved", range(6))
def test_an_unfinished_start_of_a_generation_is_finished_by_any_launch(ledger, moved):
    root = ledger.root
    create_once(root / "runs/00001.json", msgspec.json.encode({"id": "x", "generation": 1, **RECORD}))
    steps = [("attempts/g0", "old/g0/attempts"), *((k, f"old/g0/{k}") for k in ("completions", "commits", "stats"))]
    for path, to in steps[:moved]:
        (root / to).parent.mkdir(parents=True, exist_ok=True)
        (root / path).rename(root / to)
    if moved > 4:
        make_generation_dir(root / "completions", 1)
    newer = Ledger(root, *newest(root))
    settle(newer)
    settle(newer)
    assert newer.begin(0).path.exists()
    assert sorted(p.name for p in (root / "old/g0").iterdir()) == ["attempts", "commits", "completions", "stats"]


def test_two_launches_that_begin_different_runs_at_once_do_not_both_win(ledger):
    start(ledger.root, 1, RECORD | {"manifest": {"tasks": 2}})
    with pytest.raises(RunError, match="another launch began a different run"):
        start(ledger.root, 1, RECORD | {"manifest": {"tasks": 3}})
    assert start(ledger.root, 1, RECORD | {"manifest": {"tasks": 2}}).generation == 1


def test_any_launch_publishes_a_commit_without_a_mark(ledger, tmp_path):
    assert commit(ledger, attempt_of(ledger, tmp_path / "out", {"a": "1"}))
    assert sweep(ledger) == [0]
    assert sweep(ledger) == []
    assert seen(tmp_path / "out") == {"a": "1"}


class Crash(BaseException):
    """The machine stops."""


ACTS = ("link", "rename", "replace", "fsync", "mkdir", "unlink", "rmdir", "write")


def keep(doc):
    return doc.metadata["n"] < 40


def launch(tmp_path, corpus):
    steps = [JsonlReader(str(corpus)), LambdaFilter(keep)]
    steps.append(JsonlWriter(str(tmp_path / "out"), compression=None, max_file_size=4_000))
    return LocalPipelineExecutor(steps, 2, 1, str(tmp_path / "log")).run()


# D15
@pytest.mark.slow
def test_a_crash_at_every_single_step_of_a_run_is_harmless(tmp_path, corpus, monkeypatch):
    (tmp_path / "whole").mkdir()
    launch(tmp_path / "whole", corpus)
    wanted = seen(tmp_path / "whole/out")
    crashes, at = 0, 0
    while True:
        home = tmp_path / "crash"
        home.mkdir()
        left = [at]

        def guard(real, left=left):
            def call(*args, **kwargs):
                left[0] -= 1
                if left[0] < 0:
                    raise Crash  # and no later act happens either
                return real(*args, **kwargs)

            return call

        with monkeypatch.context() as patch:
            for name in ACTS:
                patch.setattr(os, name, guard(getattr(os, name)))
            try:
                launch(home, corpus)
                break
            except Crash:
                crashes += 1
        assert all(wanted[name] == text for name, text in seen(home / "out").items())  # never half a file
        stats = launch(home, corpus)
        assert seen(home / "out") == wanted
        assert stats[0].tally.made == 400
        assert [p.name for p in (home / "log/attempts/g0").iterdir()] == [".generation"]
        shutil.rmtree(home)
        at += 1 if at < 12 else 3
    assert crashes > 20
    assert Path(home / "log/stats.json").exists()
