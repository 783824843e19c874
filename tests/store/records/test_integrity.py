"""Bytes that are not those that were written are found and named; a cut file is an error, never a crash."""

import errno
import itertools
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from records_rows import equal, token_rows

import thalweg as tw
from thalweg.core.errors import IntegrityError, RecordsError, ThalwegError
from thalweg.store import fs
from thalweg.store.records import blocks, checksum, guard, part, region, rowwriter


def write(path, rows, **options):
    with tw.create_records(path, sync=False, **options) as w:
        for row in rows:
            w.write(row)
    return tw.open_records(path)


@pytest.mark.slow
def test_every_flip_of_a_byte_is_found_by_full_verification(tmp_path):
    rows = [{"input_ids": np.arange(k, dtype=np.int32), "id": f"d{k}", "n": k if k % 2 else None} for k in range(6)]
    write(tmp_path / "set", rows)
    missed = []
    for file in sorted((tmp_path / "set").iterdir()):
        good = file.read_bytes()
        for offset in range(len(good)):
            bad = bytearray(good)
            bad[offset] ^= 1 << (offset % 8)
            file.write_bytes(bad)
            try:
                tw.open_records(tmp_path / "set").verify("full")
            except ThalwegError:
                continue
            missed.append((file.name, offset))
        file.write_bytes(good)
    assert missed == []
    tw.open_records(tmp_path / "set").verify("full")


@pytest.mark.parametrize("cpus", [1, 2])
def test_verification_on_read_names_file_and_offset(tmp_path, monkeypatch, cpus):
    monkeypatch.setattr(rowwriter, "BLOCK_ROWS", 50)
    monkeypatch.setattr(blocks, "_MUCH", 0)
    monkeypatch.setattr(blocks, "has_second_cpu", lambda: cpus > 1)
    fetched, fetch = [], region.Region.fetch
    monkeypatch.setattr(region.Region, "fetch", lambda *a: (fetched.append(threading.current_thread().name), fetch(*a)))
    rec = write(tmp_path / "set", token_rows(3000), shard_bytes=100_000)
    shard = rec._opened.manifest.shards[1]
    path = tmp_path / "set" / shard.name
    data = bytearray(path.read_bytes())
    bad = len(data) // 2
    data[bad] ^= 1
    path.write_bytes(data)

    def names_the_place(said):
        first, end = map(int, re.search(rf"{shard.name}, offset (\d+) to (\d+)", str(said.value)).groups())
        assert first <= bad < end
        assert end - first < shard.size / 2  # its block, not the whole shard

    first = rec._opened.manifest.shards[0].rows
    for io in ("mmap", "pread"):
        checked = tw.open_records(tmp_path / "set", verify=True, io=io)
        assert equal(checked[0], token_rows(1)[0])
        with pytest.raises(IntegrityError) as said:
            checked.read(np.arange(first, first + shard.rows))
        names_the_place(said)
        assert not checked._opened.touch.done[checked._opened.table.of_rows(np.array([first + shard.rows // 2]))].any()
        assert not any(t.name == "thalweg-verify" for t in threading.enumerate())
    assert set(fetched) == ({"thalweg-verify"} if cpus > 1 else set())
    with pytest.raises(IntegrityError) as said:
        rec.verify("full")
    names_the_place(said)
    rec.verify("quick")


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_a_truncated_missing_or_exchanged_shard_is_named(tmp_path, io):
    rec = write(tmp_path / "set", token_rows(5000), shard_bytes=100_000)
    names = [s.name for s in rec._opened.manifest.shards]
    path = tmp_path / "set" / names[1]
    first = rec._opened.manifest.shards[0].rows
    good = path.read_bytes()
    path.write_bytes(good[:-1])
    with pytest.raises(IntegrityError, match=rf"{len(good) - 1} bytes, {len(good)} were written.*{names[1]}"):
        tw.open_records(tmp_path / "set", io=io)[first]
    with pytest.raises(IntegrityError, match=names[1]):
        rec.verify("quick")
    path.unlink()
    with pytest.raises(IntegrityError, match=f"missing.*{names[1]}"):
        tw.open_records(tmp_path / "set", io=io).read([first])
    shutil.copy(tmp_path / "set" / names[0], path)
    with pytest.raises(IntegrityError):
        tw.open_records(tmp_path / "set", io=io, verify=True).read([first])


# K47
def test_an_index_or_facts_that_were_cut_are_refused(tmp_path):
    write(tmp_path / "set", token_rows(100))
    for pattern in ("*.index", "*.length.npy"):
        path = next((tmp_path / "set").glob(pattern))
        good = path.read_bytes()
        path.write_bytes(good[:-1])
        rec = tw.open_records(tmp_path / "set")
        with pytest.raises(IntegrityError, match=path.name):
            rec.read([1], ["input_ids"])
        path.write_bytes(good)


def test_a_file_cut_while_it_is_open_is_an_error_with_pread(tmp_path):
    write(tmp_path / "set", token_rows(3000))
    rec = tw.open_records(tmp_path / "set", io="pread")
    assert equal(rec[5], token_rows(3000)[5])
    path = next((tmp_path / "set").glob("*.arrow"))
    os.truncate(path, 5000)
    with pytest.raises(IntegrityError, match=r"has 5000 bytes"):
        rec[2999]


# E37
@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("way", ["read", "one", "slice", "iterate", "column"])
def test_a_mapped_file_that_was_cut_is_an_error_and_no_crash(tmp_path, shards, way):
    rec = write(tmp_path / "set", token_rows(3000), shard_bytes="1MB" if shards == 1 else 90_000)
    last = tmp_path / "set" / rec._opened.manifest.shards[-1].name
    program = f"""
import os, numpy as np, thalweg as tw
from thalweg.core.errors import IntegrityError
rec = tw.open_records({str(tmp_path / "set")!r})
ways = {{
    "read": lambda: rec.read(np.arange(2500, 3000), ["input_ids"]),
    "one": lambda: rec[2999],
    "slice": lambda: rec[2990:],
    "iterate": lambda: list(rec),
    "column": lambda: rec.column("n"),
}}
ways[{way!r}]()
os.truncate({str(last)!r}, 5000)
try:
    ways[{way!r}]()
except IntegrityError as error:
    print(error)
"""
    if way == "column" and "n" not in rec.columns:
        program = program.replace('"n"', '"id"')
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"has 5000 bytes, {rec._opened.manifest.shards[-1].size} were written" in done.stdout
    assert last.name in done.stdout


def test_a_busy_loop_is_looked_after_seldom_and_every_call_after_a_pause(monkeypatch):
    looks, clock, cost = [], [0.0], [10e-6]
    monkeypatch.setattr(guard, "monotonic", lambda: clock[0])

    def compare(files):
        looks.append(clock[0])
        clock[0] += cost[0]  # what a look takes

    monkeypatch.setattr(guard, "_compare", compare)
    waits = itertools.count()
    monkeypatch.setattr(guard, "_waits", lambda: next(waits))
    one = guard.Guard()
    for name in "abc":
        one.add(Path(name), 1, 2, shard=True)

    def calls(n, apart):
        before = len(looks)
        for _ in range(n):
            clock[0] += apart
            if clock[0] >= one.due:
                one.look()
        return len(looks) - before

    assert calls(1, 1e-6) == 1
    assert calls(100, 1e-6) == 100  # each is looked before, until it shows
    calls(1000, 1e-6)
    assert calls(100_000, 1e-6) <= 100_000 / 400
    assert calls(50, 2e-3) == 50  # no busy loop any more
    assert calls(100, 1e-6) == 100
    monkeypatch.setattr(guard, "_waits", lambda: 7)
    calls(1, 2e-3)
    calls(1000, 1e-6)
    assert calls(1, 2e-3) == 1
    assert calls(100, 1e-6) == 0  # displaced for 2 ms, but it did not wait: still a busy loop
    monkeypatch.setattr(guard, "_waits", lambda: next(waits))
    one, cost[0] = guard.Guard(), 300e-6  # as for 200 shards, read every 2 ms: that is a busy loop then
    for name in range(200):
        one.add(Path(str(name)), 1, 2, shard=True)
    cost[0] *= 100  # an interrupted look is no slow one
    assert calls(2, 2e-3) == 2
    cost[0] /= 100
    assert calls(1000, 2e-3) <= 20 + 1000 * 2e-3 / (50 * 300e-6)


def test_sets_that_are_read_together_are_looked_after_together(monkeypatch):
    looks, clock = [], [0.0]
    monkeypatch.setattr(guard, "monotonic", lambda: clock[0])

    def compare(files):
        if files:
            looks.append(files[0][0].name)
            clock[0] += 20e-6

    monkeypatch.setattr(guard, "_compare", compare)
    waits = itertools.count()
    monkeypatch.setattr(guard, "_waits", lambda: next(waits))
    guards = [guard.Guard() for _ in range(20)]
    for number, one in enumerate(guards):
        one.add(Path(str(number)), 1, 2, shard=True)

    def calls(n):
        before = len(looks)
        for _ in range(n):
            clock[0] += 3e-3
            for one in guards:
                one.look(20)
        return len(looks) - before

    assert calls(1) == 20
    calls(100)
    assert calls(1000) * 20e-6 <= 3.0 / 40  # alone, each would be looked at every time: an eighth
    assert set(looks[-40:]) == {str(n) for n in range(20)}
    clock[0] += 1.0
    assert calls(1) == 20


def test_a_set_that_is_replaced_under_a_reader_is_read_on(tmp_path):
    rec = write(tmp_path / "set", token_rows(300))
    rec.read([0])
    write(tmp_path / "set", token_rows(5, seed=9), overwrite=True)
    assert equal(list(rec), list(token_rows(300)))


def test_shards_of_two_sets_mixed_up_are_noticed(tmp_path):
    rows = token_rows(100)
    write(tmp_path / "a", rows)
    write(tmp_path / "b", [rows[1], rows[0], *rows[2:]])
    a, b = (next((tmp_path / x).glob("*.arrow")) for x in "ab")
    assert a.stat().st_size == b.stat().st_size
    shutil.copy(b, a)
    with pytest.raises(IntegrityError, match="mixed up"):
        tw.open_records(tmp_path / "a").read([0], ["input_ids"])
    with pytest.raises(IntegrityError, match="not those that were written"):
        tw.open_records(tmp_path / "a").verify("full")


# Noticed at the end of the rows, within them, and by the thread that writes large blocks.
@pytest.mark.parametrize(("shard_bytes", "limit"), [("256MB", 200_000), ("1MB", 200_000), ("2MB", 1_500_000)])
def test_a_full_disk_is_an_error_and_loses_nothing_committed(tmp_path, shard_bytes, limit):
    write(tmp_path / "set", token_rows(50))
    before = {p.name for p in (tmp_path / "set").iterdir()}
    program = f"""
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))  # the kernel then refuses to let a file grow
import numpy as np, thalweg as tw
try:
    with tw.create_records({str(tmp_path / "set")!r}, append=True, shard_bytes={shard_bytes!r}) as w:
        for i in range(5000):
            w.write({{"input_ids": np.arange(500, dtype=np.int32)}})
except Exception as error:
    print(type(error).__name__, error)
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert "RecordsError" in said
    assert "cannot write" in said
    rec = tw.open_records(tmp_path / "set")
    assert equal(list(rec), list(token_rows(50)))
    assert {p.name for p in (tmp_path / "set").iterdir()} == before


# E38
@pytest.mark.parametrize("cpus", [1, 2])
def test_a_block_that_was_broken_off_ends_its_writer(tmp_path, monkeypatch, cpus):
    monkeypatch.setattr(checksum, "has_second_cpu", lambda: cpus > 1)
    true, full = os.write, [False]

    def write_some(fd, data):
        if full[0] and len(data) > 1000:
            os.write = true
            true(fd, data[:1000])
            raise OSError(errno.ENOSPC, "No space left on device")
        return true(fd, data)

    ids = np.arange(2 << 20, dtype=np.int32)
    with pytest.raises(RecordsError, match="not written whole"), tw.create_records(tmp_path / "set", sync=False) as w:
        w.write({"input_ids": ids})
        w.write_batch({"input_ids": [ids]})
        monkeypatch.setattr(os, "write", write_some)
        full[0] = True
        with pytest.raises(RecordsError, match=r"cannot write: No space.*free some space"):
            w.write_batch({"input_ids": [ids]})
        full[0] = False  # there is room again, but nobody knows what is in the file
        w.write_batch({"input_ids": [ids]})
    assert [t.name for t in threading.enumerate() if t.name == "thalweg-write"] == []
    assert [p.name for p in (tmp_path / "set").iterdir() if p.suffix in (".arrow", ".tmp")] == []
    with pytest.raises(RecordsError):
        tw.open_records(tmp_path / "set")


# E38 E41
def test_a_file_that_is_written_beside_the_hashing_is_the_same(tmp_path, monkeypatch):
    rows = [{"input_ids": np.arange(k, dtype=np.int32), "text": f"row {k}"} for k in range(0, 60_000, 97)]
    columns = {"input_ids": [r["input_ids"] for r in rows], "text": [r["text"] for r in rows]}
    files, begun, start = [], [], threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", lambda self: (begun.append(self.name), start(self)))
    for cpus in (1, 2):
        monkeypatch.setattr(checksum, "has_second_cpu", lambda cpus=cpus: cpus > 1)
        assert not begun
        with tw.create_records(tmp_path / str(cpus), sync=False, shard_bytes="40MB") as w:
            w.write_batch(columns)
            for row in rows[::-1]:
                w.write(row)
        rec = tw.open_records(tmp_path / str(cpus))
        rec.verify("full")
        assert equal(list(rec), rows + rows[::-1])
        files.append([(rec.fingerprint, s.checksum, s.size) for s in rec._opened.manifest.shards])
    assert files[0] == files[1]
    assert set(begun) == {"thalweg-write"}


@pytest.mark.parametrize("step", ["_write_index", "_close_facts", "manifest"])
def test_a_disk_that_is_full_at_the_very_end_is_an_error_too(tmp_path, monkeypatch, step):
    write(tmp_path / "set", token_rows(50))
    before = {p.name for p in (tmp_path / "set").iterdir()}

    def full(*_args, **_words):
        raise OSError(errno.ENOSPC, "No space left on device")

    writer = tw.create_records(tmp_path / "set", append=True, sync=False)
    writer.write(token_rows(1)[0])
    monkeypatch.setattr(*((fs, "write_whole") if step == "manifest" else (part.PartFiles, step)), full)
    with pytest.raises(RecordsError, match=r"cannot write: No space.*free some space"):
        writer.close()
    monkeypatch.undo()
    assert equal(list(tw.open_records(tmp_path / "set")), list(token_rows(50)))
    assert {p.name for p in (tmp_path / "set").iterdir()} == before


def test_a_generation_whose_name_cannot_be_made_durable_does_not_appear(tmp_path, monkeypatch):
    write(tmp_path / "set", token_rows(50))
    before = {p.name for p in (tmp_path / "set").iterdir()}
    true = fs.sync_folder

    def broken(folder):
        if (folder / "manifest.1").exists():
            raise OSError(errno.EIO, "Input/output error")
        true(folder)

    monkeypatch.setattr(fs, "sync_folder", broken)
    with pytest.raises(RecordsError, match="Input/output"), tw.create_records(tmp_path / "set", append=True) as writer:
        writer.write(token_rows(1)[0])
    assert equal(list(tw.open_records(tmp_path / "set")), list(token_rows(50)))
    assert {p.name for p in (tmp_path / "set").iterdir()} == before


def test_an_unknown_level_or_generation_is_refused(tmp_path):
    rec = write(tmp_path / "set", token_rows(2))
    with pytest.raises(ValueError, match="quick"):
        rec.verify("fast")
    with pytest.raises(RecordsError, match="no such generation"):
        tw.open_records(tmp_path / "set", generation=7)
