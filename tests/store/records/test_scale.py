"""What a set costs: descriptors, memory, bytes read. Counted, never timed."""

import os
import pickle
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from records_rows import equal, token_rows

import thalweg as tw


def write(path, rows, **options):
    with tw.create_records(path, sync=False, **options) as w:
        for row in rows:
            w.write(row)
    return tw.open_records(path)


def run(program):
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    ("shards", "limit"),
    [pytest.param(1000, 40, marks=pytest.mark.slow), pytest.param(10_000, 256, marks=pytest.mark.soak)],
)
def test_many_more_shards_than_open_files_are_read(tmp_path, shards, limit):
    with tw.create_records(tmp_path / "set", sync=False, shard_bytes=1) as w:
        for i in range(shards):
            w.write_batch({"input_ids": [[i, i + 1]], "n": [i]})
    assert len(list((tmp_path / "set").glob("*.arrow"))) == shards
    program = f"""
import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit}))
import thalweg as tw, numpy as np
rec = tw.open_records({str(tmp_path / "set")!r})
order = np.random.default_rng(0).permutation({shards})
assert rec.read(order, ["input_ids"])["input_ids"].values.reshape(-1, 2)[:, 0].tolist() == order.tolist()
assert rec.read(order)["n"].tolist() == order.tolist()
assert all(rec[int(i)]["n"] == i for i in order[:500])
import os; print(len(os.listdir("/proc/self/fd")))
"""
    assert int(run(program)[0]) < 20


# E36
def test_a_rank_that_reads_one_nth_of_the_rows_reads_about_one_nth_of_the_bytes(tmp_path, monkeypatch):
    rec = write(tmp_path / "set", token_rows(8000), shard_bytes=100_000)
    total = sum(s.size for s in rec._opened.manifest.shards)
    part = tw.open_records(tmp_path / "set", io="pread")
    taken = []
    read = type(part._opened.memory).read
    monkeypatch.setattr(
        type(part._opened.memory),
        "read",
        lambda self, shard, at, size: taken.append(size) or read(self, shard, at, size),
    )
    part.read(np.arange(2000, 4000))
    assert sum(taken) < 1.1 * total / 4


# E37
@pytest.mark.slow
def test_memory_does_not_grow_with_the_set(tmp_path):
    used = []
    for n in (1, 8):
        with tw.create_records(tmp_path / str(n), sync=False, shard_bytes="8MB") as w:
            for k in range(n):
                rng = np.random.default_rng(k)
                lengths = rng.integers(500, 1500, 4000)
                values = rng.integers(0, 99_999, lengths.sum()).astype(np.int32)
                w.write_batch({"input_ids": tw.Ragged(values, np.concatenate([[0], np.cumsum(lengths)]))})
        program = f"""
import thalweg as tw
rec = tw.open_records({str(tmp_path / str(n))!r})
total = 0
for sample in rec: total += int(sample["input_ids"][0] >= 0)
for a in range(0, len(rec), 512): total += len(rec.read(range(a, min(a + 512, len(rec))))["input_ids"].values)
print([line.split()[1] for line in open("/proc/self/status") if line.startswith("RssAnon")][0])
"""
        used.append(int(run(program)[0]))
    assert used[1] < used[0] + 4000  # kB: seven times more data, 112 MB


# E39
def test_a_source_that_can_be_read_only_once_is_written_whole(tmp_path):
    once = iter(token_rows(30))
    assert equal(list(write(tmp_path / "set", once)), list(token_rows(30)))
    assert next(once, None) is None


def test_other_arrow_tools_open_a_shard(tmp_path):
    rec = write(tmp_path / "set", token_rows(50))
    path = tmp_path / "set" / rec._opened.manifest.shards[0].name
    table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    assert table.column("input_ids").to_pylist() == [r["input_ids"].tolist() for r in token_rows(50)]
    assert table.column("id").to_pylist() == [r["id"] for r in token_rows(50)]
    polars = pytest.importorskip("polars")
    assert polars.read_ipc(path)["row"].to_list() == list(range(50))


def test_datasets_opens_a_shard(tmp_path):
    datasets = pytest.importorskip("datasets")
    rec = write(tmp_path / "set", token_rows(20))
    path = tmp_path / "set" / rec._opened.manifest.shards[0].name
    table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    found = datasets.Dataset(datasets.table.InMemoryTable(table))
    assert found[3]["input_ids"] == token_rows(20)[3]["input_ids"].tolist()


def test_a_forked_and_a_spawned_process_read_the_set(tmp_path):
    rows = token_rows(3000)
    rec = write(tmp_path / "set", rows, shard_bytes=50_000)
    assert equal(rec[0], rows[0])
    read, send = os.pipe()
    child = os.fork()
    if child == 0:
        ok = all(equal(rec[i], rows[i]) for i in range(0, 3000, 101)) and len(rec.read(range(3000))["id"]) == 3000
        os.write(send, b"1" if ok else b"0")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 1) == b"1"
    data = tmp_path / "pickled"
    data.write_bytes(pickle.dumps(rec))
    program = f"""
import pickle
rec = pickle.load(open({str(data)!r}, "rb"))
print(rec.fingerprint, len(rec[2999]["input_ids"]))
"""
    assert run(program) == [rec.fingerprint, str(len(rows[2999]["input_ids"]))]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/smaps")
def test_row_facts_are_mapped_once_for_all_ranks(tmp_path):
    n = 1_000_000
    with tw.create_records(tmp_path / "set", sync=False) as w:
        offsets = np.arange(n + 1, dtype=np.int64) // 3
        w.write_batch({"input_ids": tw.Ragged(np.zeros(offsets[-1], np.int32), offsets)})
    program = f"""
import sys
import thalweg as tw
rec = tw.open_records({str(tmp_path / "set")!r})
assert int(rec.lengths.sum()) == {n // 3}
print("ready", flush=True)
sys.stdin.readline()
kept = pss = 0
for line in open("/proc/self/smaps"):
    if "-" in line.split()[0]:
        kept = line.rstrip().endswith(".length.npy")
    elif kept and line.startswith("Pss:"):
        pss += int(line.split()[1])
print(pss, flush=True)
sys.stdin.readline()
"""

    def total(ranks):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        running = [subprocess.Popen([sys.executable, "-c", program], **pipes) for _ in range(ranks)]
        for p in running:
            assert p.stdout.readline() == "ready\n"
        found = 0
        for p in running:
            print(file=p.stdin, flush=True)
            found += int(p.stdout.readline())
        for p in running:
            p.communicate("\n")
        return found

    one = total(1)
    assert 4 * n / 1024 <= one <= 1.01 * 4 * n / 1024 + 8  # kB: 4 bytes a row
    assert total(4) <= 1.2 * one
