"""Many writers of one set: declared, whole or missing by name, merged by anyone."""

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest
from records_rows import equal, token_rows

import thalweg as tw
from thalweg.core.errors import RecordsError
from thalweg.store import fs
from thalweg.store.records import PartWriter, create_records, declare_parts, merge_parts, place


def write_part(path, part, parts, rows, **options):
    with PartWriter(path, part, parts, sync=False, **options) as w:
        for row in rows:
            w.write(row)
    return w.files


WORK = """
import sys
sys.path.insert(0, sys.argv[1])
from records_rows import token_rows
from thalweg.core.errors import RecordsError
from thalweg.store.records import PartWriter, merge_parts
path, part = sys.argv[2], int(sys.argv[3])
with PartWriter(path, part, 4, sync=False, shard_bytes=10_000) as w:
    for row in token_rows(200, seed=part):
        w.write(row)
try:
    print(merge_parts(path).fingerprint)
except RecordsError:
    print("early")
"""


# E41 K47
def test_processes_write_parts_and_the_order_is_that_of_the_parts(tmp_path):
    rows = [r for part in range(4) for r in token_rows(200, seed=part)]
    command = [sys.executable, "-c", WORK, str(Path(__file__).parent), str(tmp_path / "set")]
    running = [subprocess.Popen([*command, str(k)], stdout=subprocess.PIPE, text=True) for k in range(4)]
    said = {p.communicate()[0].strip() for p in running}
    assert [p.returncode for p in running] == [0] * 4
    merge_parts(tmp_path / "set")
    rec = tw.open_records(tmp_path / "set")
    assert equal(list(rec), list(rows))
    assert said <= {"early", rec.fingerprint}
    rec.verify("full")


def test_missing_parts_are_named_and_partial_opens_what_is_there(tmp_path):
    declare_parts(tmp_path / "set", 5)
    write_part(tmp_path / "set", 1, 5, token_rows(10))
    write_part(tmp_path / "set", 3, 5, token_rows(10, seed=1))
    with pytest.raises(RecordsError, match="3 of 5 parts are missing: 0, 2, 4"):
        tw.open_records(tmp_path / "set")
    with pytest.raises(RecordsError, match="0, 2, 4"):
        merge_parts(tmp_path / "set")
    rec = tw.open_records(tmp_path / "set", partial=True)
    assert equal(list(rec), list(token_rows(10) + token_rows(10, seed=1)))
    assert rec.lengths.tolist() == [len(r["input_ids"]) for r in rec]
    for k in (0, 4):
        write_part(tmp_path / "set", k, 5, token_rows(1))
    with pytest.raises(RecordsError, match="1 of 5 parts are missing: 2"):
        merge_parts(tmp_path / "set")


def test_another_number_of_parts_is_refused(tmp_path):
    assert declare_parts(tmp_path / "set", 3) == 0
    assert declare_parts(tmp_path / "set", 3) == 0
    for other in (2, 4):
        with pytest.raises(RecordsError, match=f"3 parts are declared, {other} asked for"):
            declare_parts(tmp_path / "set", other)


# K47
def test_merging_twice_changes_nothing(tmp_path):
    for k in range(3):
        write_part(tmp_path / "set", k, 3, token_rows(20, seed=k))
    first = merge_parts(tmp_path / "set")
    before = {p.name: p.read_bytes() for p in (tmp_path / "set").iterdir()}
    assert merge_parts(tmp_path / "set") == first
    assert {p.name: p.read_bytes() for p in (tmp_path / "set").iterdir()} == before
    (tmp_path / "set" / "manifest.0").unlink()  # as one sees it who began to merge before the other was done
    assert merge_parts(tmp_path / "set") == first
    assert {p.name: p.read_bytes() for p in (tmp_path / "set").iterdir()} == before


def test_a_part_written_twice_appears_once(tmp_path):
    write_part(tmp_path / "set", 0, 1, token_rows(5))
    assert write_part(tmp_path / "set", 0, 1, token_rows(9)) == []
    merge_parts(tmp_path / "set")
    assert len(tw.open_records(tmp_path / "set")) == 5


def test_files_put_elsewhere_are_named_and_may_be_moved_in(tmp_path):
    for k in range(2):
        names = write_part(tmp_path / "set", k, 2, token_rows(40, seed=k), folder=tmp_path / f"attempt{k}")
        assert sorted(names) == sorted(p.name for p in (tmp_path / f"attempt{k}").iterdir())
        assert names[-1] == f"part.0.{k:05d}"
        for name in names:
            (tmp_path / f"attempt{k}" / name).rename(tmp_path / "set" / name)
    merge_parts(tmp_path / "set")
    assert equal(list(tw.open_records(tmp_path / "set")), list(token_rows(40) + token_rows(40, seed=1)))


def test_a_manifest_that_was_half_written_is_removed_by_the_next_start_and_a_living_one_is_not(tmp_path):
    program = f"""
import os, signal
from pathlib import Path
from thalweg.store import fs
def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
os.link = die
fs.write_whole(Path({str(tmp_path / "set" / "manifest.0")!r}), b"x", exclusive=True)
"""
    (tmp_path / "set").mkdir()
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -9
    (half,) = (tmp_path / "set").iterdir()
    living = half.with_name(".parts.0.0123456789abcdef.tmp")
    with living.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with create_records(tmp_path / "set", sync=False) as w:
            w.write({"n": 1})
        assert living.exists()
        assert not half.exists()


def test_a_sweep_while_a_writer_begins_takes_nothing_from_it(tmp_path, monkeypatch):
    true, seen = fcntl.flock, []

    def flock(fd, how):
        if not seen:  # the writer's: its file is there, and not locked yet
            seen.extend(p.name for p in tmp_path.iterdir())
            assert not any(name.endswith(".life") for name in seen)  # nobody who looks takes it for a dead one's
            assert place.sweep(tmp_path) == seen  # what is on its way may go: it is begun again
        true(fd, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with create_records(tmp_path, sync=False) as w:
        (life,) = tmp_path.iterdir()
        assert fs.is_alive(life)
        assert place.sweep(tmp_path) == []
        w.write({"n": 1})
    assert len(seen) == 1
    assert tw.open_records(tmp_path)[0]["n"] == 1


def test_parts_can_be_appended(tmp_path):
    with tw.create_records(tmp_path / "set", sync=False) as w:
        for row in token_rows(7):
            w.write(row)
    for k in range(2):
        write_part(tmp_path / "set", k, 2, token_rows(5, seed=k), append=True)
    merge_parts(tmp_path / "set")
    rec = tw.open_records(tmp_path / "set")
    assert rec.generation == 1
    assert equal(list(rec), list(token_rows(7) + token_rows(5) + token_rows(5, seed=1)))
    rec.verify("full")


# K47
def test_two_that_append_at_once_both_appear_one_after_the_other(tmp_path):
    def row(name):
        return {"input_ids": [ord(name)], "id": name}

    with tw.create_records(tmp_path / "set", sync=False) as w:
        [w.write(row(n)) for n in "AB"]
    c, d = (tw.create_records(tmp_path / "set", append=True, sync=False) for _ in range(2))
    c.write(row("C"))
    d.write(row("D"))
    d.close()
    c.close()
    rec = tw.open_records(tmp_path / "set")
    assert [r["id"] for r in rec] == ["A", "B", "D", "C"]
    assert rec.read([2, 3], ["input_ids"])["input_ids"].values.tolist() == [ord("D"), ord("C")]
    assert rec.lengths.tolist() == [1] * 4
    assert [len(tw.open_records(tmp_path / "set", generation=g)) for g in range(3)] == [2, 3, 4]
    rec.verify("full")


# K47
def test_two_sets_of_two_and_three_documents_make_one_of_five(tmp_path):
    for k, ids in enumerate(([[1], [2, 3]], [[4], [5], [6, 7]])):
        write_part(tmp_path / "set", k, 2, [{"input_ids": i} for i in ids])
    merge_parts(tmp_path / "set")
    rec = tw.open_records(tmp_path / "set")
    assert [r["input_ids"].tolist() for r in rec] == [[1], [2, 3], [4], [5], [6, 7]]
    assert rec[2]["input_ids"][0] == 4
