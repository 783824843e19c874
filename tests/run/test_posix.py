"""What only a POSIX file system can get wrong: durability, open descriptors, directories half moved."""

import os

import msgspec
import pytest

from thalweg.core.errors import IntegrityError
from thalweg.run.commit import commit, publish, record
from thalweg.run.ledger import Ledger, newest, settle, start
from thalweg.run.logging_dir import Made
from thalweg.run.uploads import Uploads
from thalweg.store.claim import create_once, make_generation_dir

RECORD = {"manifest": {"tasks": 1}, "tasks": 1, "outside": [], "fresh_outputs": True}


@pytest.fixture
def ledger(tmp_path):
    (tmp_path / "log").mkdir()
    return start(tmp_path / "log", 0, RECORD)


def attempt_of(ledger, out, files):
    """Make an attempt that wrote these files."""
    attempt = ledger.begin(0)
    stage = attempt.path / "o0"
    stage.mkdir()
    for name, content in files.items():
        (stage / name).write_text(content)
    record(attempt, Made({str(out): str(stage)}), [])
    return attempt


def seen(out):
    return {str(p.relative_to(out)): p.read_text() for p in out.rglob("*") if p.is_file()} if out.exists() else {}


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


def test_a_published_file_that_was_replaced_is_noticed_before_the_mark(ledger, tmp_path):
    attempt = attempt_of(ledger, tmp_path / "out", {"a": "new"})
    assert commit(ledger, attempt)
    (tmp_path / "out").mkdir()
    os.rename(attempt.path / "o0/a", tmp_path / "out/a")
    (tmp_path / "out/a").write_text("NEW")  # the same size, other bytes
    with pytest.raises(IntegrityError, match="missing, or not whole"):
        publish(ledger, 0, Uploads())
    assert ledger.marked() == set()


def test_a_descriptor_left_open_cannot_write_into_a_published_file(ledger, tmp_path):
    attempt = ledger.begin(0)
    stage = attempt.path / "o0"
    stage.mkdir()
    with open(stage / "a", "w") as leaked:
        leaked.write("whole")
        leaked.flush()
        record(attempt, Made({str(tmp_path / "out"): str(stage)}), [])
        assert commit(ledger, attempt)
        publish(ledger, 0, Uploads())
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
    publish(ledger, 0, Uploads())
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
