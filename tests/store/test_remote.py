"""Record sets on a real S3 server: few requests, one download for all ranks, faults survived, a bounded cache."""

import json
import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import thalweg as tw
from thalweg.core.errors import IntegrityError, RecordsError
from thalweg.store import cache as node_cache
from thalweg.store import fs as store_fs
from thalweg.store.cache import Needs, NodeCache
from thalweg.store.records import PartWriter, ahead, declare_parts, farsweep, merge_parts, pieces, rowwriter
from thalweg.store.remote import Remote

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")]


@pytest.fixture(scope="module")
def server():
    pytest.importorskip("s3fs")
    moto = pytest.importorskip("moto.server")
    from s3_proxy import Proxy

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        os.environ[name] = "test"
    os.environ.update(AWS_DEFAULT_REGION="us-east-1", AWS_EC2_METADATA_DISABLED="true")
    s3 = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    s3.start()
    proxy = Proxy(s3.get_host_and_port()[1])
    yield proxy
    proxy.close()
    s3.stop()


@pytest.fixture
def s3(server, tmp_path):
    import fsspec

    server.harm = lambda *_: None
    options = {
        "endpoint_url": server.url,
        "key": "test",
        "secret": "test",
        "config_kwargs": {"retries": {"max_attempts": 1}},
    }
    fs = fsspec.filesystem("s3", **options)
    bucket = "b" + tmp_path.name.lower().replace("_", "-")[-40:].strip("-")
    fs.mkdir(bucket)
    server.seen.clear()
    server.sent = 0
    return f"s3://{bucket}/set", options, server


def rows(n=600):
    rng = np.random.default_rng(4)
    return [{"input_ids": rng.integers(0, 9999, 200).astype(np.int32), "n": i} for i in range(n)]


def upload(url, options, data, **more):
    with tw.create_records(url, storage_options=options, **more) as w:
        for row in data:
            w.write(row)


def test_rejected_rows_are_copied_behind_a_url_and_go_with_their_set(s3):
    import fsspec

    url, options, _ = s3
    fs = fsspec.filesystem("s3", **options)

    def rejected(**words):
        upload(url, options, [{"input_ids": [1]}, {"input_ids": ["bad"]}], on_error="quarantine", **words)
        fs.invalidate_cache()
        return [fs.cat(path) for path in fs.ls(url) if path.endswith(".quarantine.jsonl")]

    (one,) = rejected()
    assert b"bad" in one
    assert len(rejected(append=True)) == 2
    assert len(rejected(overwrite=True)) == 1


def test_a_set_is_written_and_read_behind_a_url_and_opening_costs_three_requests(s3, tmp_path):
    url, options, server = s3
    upload(url, options, rows(), shard_bytes=50_000)
    server.seen.clear()
    server.sent = 0
    rec = tw.open_records(url, storage_options=options, cache_dir=tmp_path / "c")
    assert len(rec) == 600
    assert len(server.reads()) <= 3
    assert not [path for _, path in server.reads() if "list-type" in path]
    for a, b in zip(rec, rows(), strict=True):
        assert a["n"] == b["n"]
        assert np.array_equal(a["input_ids"], b["input_ids"])
    used = sum(s.size for s in rec._opened.manifest.shards)
    assert server.sent < 1.1 * used
    before = len(server.seen)
    again = tw.open_records(url, storage_options=options, cache_dir=tmp_path / "c")
    assert again.fingerprint == rec.fingerprint
    assert again[599]["n"] == 599
    assert len(server.seen) == before  # another rank of this node asks for nothing
    with pytest.raises(RecordsError, match="in use"):
        upload(url, options, rows(3))
    with pytest.raises(RecordsError, match="no record set"):
        tw.open_records(url + "x", storage_options=options, cache_dir=tmp_path / "c")


# K47
def test_eight_ranks_on_an_empty_cache_cost_what_one_does(s3, tmp_path):
    url, options, server = s3
    upload(url, options, rows(), shard_bytes=50_000)
    program = f"""
import json, sys, thalweg as tw
options = json.loads({json.dumps(options)!r})
rec = tw.open_records({url!r}, columns=["input_ids"], storage_options=options, cache_dir=sys.argv[2])
feed = tw.from_records(rec).shuffle(seed=3).batch(5)
rank, world = int(sys.argv[1]), int(sys.argv[3])
loader = tw.Loader(feed, topology=tw.Topology(rank=rank, world=world), return_tensors="np")
print(sum(int(b["input_ids"].sum()) for b in loader))
"""
    cost = {}
    for world in (1, 8):
        server.seen.clear()
        server.sent = 0
        command = [sys.executable, "-c", program]
        cache = str(tmp_path / f"c{world}")
        running = [
            subprocess.Popen([*command, str(k), cache, str(world)], stdout=subprocess.PIPE, text=True)
            for k in range(world)
        ]
        said = [int(p.communicate()[0]) for p in running]
        assert sum(said) == sum(int(r["input_ids"].sum()) for r in rows())
        gets = server.gets("")
        assert len(gets) == len(set(gets))  # each file once
        assert not [p.name for p in (tmp_path / f"c{world}").iterdir() if p.name.startswith(".")]
        cost[world] = (len(server.reads()), server.sent)
    assert cost[8] == cost[1]
    rec = tw.open_records(url, storage_options=options, cache_dir=tmp_path / "c1")
    used = sum(s.size for s in rec._opened.manifest.shards)
    assert cost[8][1] <= 1.1 * used


@pytest.mark.parametrize("harm", [503, "cut", "slow"])
def test_a_server_that_fails_now_and_then_is_survived(s3, tmp_path, harm):
    url, options, server = s3
    upload(url, options, rows(200), shard_bytes=50_000)
    server.harm = lambda number, method, path: harm if method == "GET" and number % 3 == 1 else None
    rec = tw.open_records(url, storage_options=options, cache_dir=tmp_path / "c")
    assert [r["n"] for r in rec] == list(range(200))


def test_a_server_that_fails_always_is_an_error_that_says_so(s3, tmp_path):
    url, options, server = s3
    server.harm = lambda number, method, path: 503
    with pytest.raises(RecordsError, match="server failed"):
        tw.open_records(url, storage_options=options, cache_dir=tmp_path / "d")


def test_the_cache_keeps_its_cap_and_open_readers_go_on(s3, tmp_path):
    url, options, _ = s3
    upload(url, options, rows(), shard_bytes=50_000)
    rec = tw.open_records(url, storage_options=options, cache_dir=tmp_path / "c", cache_bytes=200_000)
    first = rec[0]["input_ids"]
    assert [r["n"] for r in rec] == list(range(600))
    assert sum(p.stat().st_size for p in (tmp_path / "c").iterdir()) <= 200_000
    assert np.array_equal(first, rows(1)[0]["input_ids"])
    assert rec[1]["n"] == 1  # evicted since, and fetched again
    held = [line for line in Path("/proc/self/maps").read_text().splitlines() if str(tmp_path / "c") in line]
    assert not [
        line for line in held if ".arrow" in line and "(deleted)" in line
    ]  # or the disk would hold more than the cap


@pytest.mark.parametrize("mapped", [True, False])
def test_a_piece_that_is_evicted_before_it_is_opened_is_fetched_again(s3, tmp_path, monkeypatch, mapped):
    url, options, _ = s3
    upload(url, options, rows(), shard_bytes=50_000)
    cap = 10**9 if mapped else 200_000
    rec = tw.open_records(url, storage_options=options, cache_dir=tmp_path / "c", cache_bytes=cap)
    evicted = []

    def evicting(true, at):
        def call(*args):
            if not evicted:
                evicted.append(args[at])
                args[at].unlink()
            return true(*args)

        return call

    if mapped:
        monkeypatch.setattr(pieces.MappedPieces, "put", evicting(pieces.MappedPieces.put, 2))
    else:
        monkeypatch.setattr(pieces, "read_range", evicting(pieces.read_range, 0))
    assert [r["n"] for r in rec] == list(range(600))
    assert len(evicted) == 1


def test_a_missing_remote_shard_is_named(s3, tmp_path):
    import fsspec

    url, options, _ = s3
    upload(url, options, rows(50))
    fs = fsspec.filesystem("s3", **options)
    rec = tw.open_records(url, storage_options=options, cache_dir=tmp_path / "c")
    name = rec._opened.manifest.shards[0].name
    fs.rm(f"{url}/{name}")
    with pytest.raises(IntegrityError, match=name):
        rec[0]


def test_what_a_dead_process_left_in_the_cache_is_removed(tmp_path):
    cache = NodeCache(tmp_path / "c", 10**6)
    program = f"""
import os, signal
from pathlib import Path
from thalweg.store import cache as node_cache
from thalweg.store.cache import NodeCache, Needs
from thalweg.store.records import pieces
def fetch(target):
    target.write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
NodeCache(Path({str(tmp_path / "c")!r}), 10**6).get("key", fetch)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -9
    assert len(list((tmp_path / "c").iterdir())) == 2
    assert cache.get("key", lambda target: target.write_bytes(b"whole") and None).read_bytes() == b"whole"
    assert [p.name for p in (tmp_path / "c").iterdir()] == ["key"]


def test_opening_ten_thousand_remote_shards_costs_three_requests_and_no_listing(s3, tmp_path):
    import msgspec

    from thalweg.store.records.manifest import pack
    from thalweg.store.records.place import read_manifest

    url, options, server = s3
    with tw.create_records(tmp_path / "set", sync=False) as w:
        w.write({"input_ids": [1, 2, 3]})
    small = read_manifest(tmp_path / "set" / "manifest.0")
    wide = [msgspec.structs.replace(small.shards[0], name=f"data-wide.{k:05d}.arrow") for k in range(10_000)]
    import fsspec

    fs = fsspec.filesystem("s3", **options)
    fs.pipe_file(f"{url}/manifest.0", pack(msgspec.structs.replace(small, rows=10_000, shards=wide)))
    server.seen.clear()
    rec = tw.open_records(url, storage_options=options, cache_dir=tmp_path / "c")
    assert len(rec) == 10_000
    assert len(server.seen) <= 3
    assert not [path for _, path in server.seen if "list-type" in path or "prefix" in path]


def test_a_rank_that_reads_one_nth_of_the_rows_fetches_about_one_nth_of_the_bytes(s3, tmp_path, monkeypatch):
    url, options, server = s3
    monkeypatch.setattr(rowwriter, "BLOCK_ROWS", 60)
    upload(url, options, rows(6000), shard_bytes=1_000_000)
    monkeypatch.setattr(pieces, "PIECE", 16 << 10)
    rec = tw.open_records(url, storage_options=options, cache_dir=tmp_path / "c")
    rec.read([0], ["input_ids"])  # index and lengths are here now
    server.sent = 0
    found = rec.read(np.arange(1500, 3500), ["input_ids"])["input_ids"]
    assert np.array_equal(found[0], rows(6000)[1500]["input_ids"])
    assert server.sent <= 1.1 * found.values.nbytes
    spread = tw.open_records(url, storage_options=options, cache_dir=tmp_path / "c", io="pread")
    server.sent = 0
    chosen = np.arange(5, 6000, 200)[::-1]
    found = spread.read(chosen, ["input_ids"])["input_ids"]
    assert np.array_equal(found[0], rows(6000)[int(chosen[0])]["input_ids"])
    assert server.sent <= 1.1 * (found.values.nbytes + 16 * len(chosen))


def test_what_is_announced_is_fetched_before_it_is_read(s3, tmp_path):
    url, options, server = s3
    upload(url, options, rows(), shard_bytes=50_000)
    rec = tw.open_records(url, storage_options=options, cache_dir=tmp_path / "c")
    shards = rec._opened.manifest.shards
    assert rec.ahead(np.arange(600))
    folder = tmp_path / "c"
    names = [rec._opened._pieces.key((k, 0)) for k in range(len(shards))]
    server.wait_for(lambda: len(server.gets(".arrow")) == len(shards))
    assert rec.ahead([])  # nothing more: its threads end
    assert [r["n"] for r in rec.rows(np.arange(600))] == list(range(600))
    assert len(server.gets(".arrow")) == len(shards)
    assert all((folder / n).exists() for n in names)


def test_what_is_announced_is_fetched_in_the_order_in_which_it_is_read(s3, tmp_path, monkeypatch):
    url, options, server = s3
    monkeypatch.setattr(ahead, "THREADS", 1)
    upload(url, options, rows(), shard_bytes=50_000)
    rec = tw.open_records(url, storage_options=options, cache_dir=tmp_path / "c")
    names = [s.name for s in rec._opened.manifest.shards]
    assert rec.ahead(np.arange(600)[::-1])
    server.wait_for(lambda: len(server.gets(".arrow")) == len(names))
    assert [path.rpartition("/")[2] for path in server.gets(".arrow")] == names[::-1]
    assert rec.ahead([])


def test_a_planned_feed_fetches_what_it_will_read(s3, tmp_path):
    url, options, server = s3
    upload(url, options, rows(), shard_bytes=50_000)
    rec = tw.open_records(url, columns=["input_ids"], storage_options=options, cache_dir=tmp_path / "c")
    shards = rec._opened.manifest.shards
    in_order = tw.concat({"a": tw.from_records(rec).take(400), "b": tw.from_records(rec).skip(400)}).batch(20)
    loader = tw.Loader(in_order, return_tensors="np", workers=0)
    batches = iter(loader)
    taken = [next(batches)]
    server.wait_for(lambda: len(server.gets(".arrow")) == len(shards))  # one batch of thirty was asked for
    taken += batches
    assert [b["input_ids"].tolist() for b in taken] == [
        [r["input_ids"].tolist() for r in rows()[a : a + 20]] for a in range(0, 600, 20)
    ]
    assert len(server.gets(".arrow")) == len(shards)
    assert not [p.name for p in (tmp_path / "c").iterdir() if p.name.startswith(".")]


def test_a_known_order_decides_what_is_evicted(s3, tmp_path):
    url, options, server = s3
    upload(url, options, rows(), shard_bytes=50_000)
    fetched = {}
    for known in (False, True):
        cache = tmp_path / str(known)
        rec = tw.open_records(url, storage_options=options, cache_dir=cache, cache_bytes=330_000)
        bounds = np.cumsum([0, *(s.rows for s in rec._opened.manifest.shards)])
        reads = [np.arange(a, b) for _ in range(4) for a, b in pairwise(bounds)]
        server.seen.clear()
        for coming in reads if known else []:
            rec.ahead(coming, len(reads))
        for some in reads:
            assert rec.read(some)["n"].tolist() == some.tolist()
            if known:
                rec.ahead(some, len(reads))  # it goes on in the same circle
        rec.ahead([])
        fetched[known] = len(server.gets(".arrow"))
    assert fetched[False] == len(reads)  # the longest unused is what comes next in a circle
    assert fetched[True] < 0.85 * len(reads)


def test_what_nobody_needs_goes_first_and_then_what_is_needed_last(tmp_path):
    cache = NodeCache(tmp_path / "c", 400)
    for k, name in enumerate("abcd"):
        cache.get(name, lambda target: target.write_bytes(bytes(100)) and None)
        os.utime(tmp_path / "c" / name, (k, k))
    mine, other = Needs(cache), Needs(cache)
    mine.say(["a", "d"])
    other.say(["c", "x", "a"])
    gone = []
    for size in (350, 250, 150, 50):
        before = {p.name for p in (tmp_path / "c").iterdir() if not p.name.startswith(".")}
        cache.max_bytes = size
        cache.shrink()
        gone += sorted(before - {p.name for p in (tmp_path / "c").iterdir()})
    assert gone == ["b", "d", "a", "c"]
    mine.end()
    other.end()
    assert list((tmp_path / "c").iterdir()) == []


def test_a_process_that_stands_still_while_it_fetches_holds_nobody_up(tmp_path, monkeypatch):
    program = f"""
import os, signal
from pathlib import Path
from thalweg.store.cache import NodeCache
def fetch(target):
    target.write_bytes(b"ha")
    print("begun", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
    target.write_bytes(b"whole")
print(NodeCache(Path({str(tmp_path / "c")!r}), 10**6).get("key", fetch).read_bytes().decode())
"""
    slow = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert slow.stdout.readline() == "begun\n"
    monkeypatch.setattr(node_cache, "STALL", 0.1)
    cache = NodeCache(tmp_path / "c", 10**6)
    assert cache.get("key", lambda target: target.write_bytes(b"whole") and None).read_bytes() == b"whole"
    slow.send_signal(signal.SIGCONT)
    assert slow.communicate()[0] == "whole\n"
    assert [p.name for p in (tmp_path / "c").iterdir()] == ["key"]


def test_a_set_behind_a_url_is_appended_to_and_replaced_as_one_on_disk(s3, tmp_path):
    url, options, server = s3
    kept = {"storage_options": options, "cache_dir": tmp_path / "c"}
    for k in range(3):
        upload(url, options, rows(k * 40 + 10), shard_bytes=20_000, append=k > 0)
        with tw.create_records(tmp_path / "local", sync=False, append=k > 0) as w:
            for row in rows(k * 40 + 10):
                w.write(row)
    for k, n in ((0, 10), (1, 60), (2, 150)):
        assert len(tw.open_records(url, generation=k, **kept)) == n
    server.seen.clear()
    rec = tw.open_records(url, storage_options=options, cache_dir=tmp_path / "other")
    assert len(server.seen) <= 3
    assert rec.fingerprint == tw.open_records(tmp_path / "local").fingerprint
    assert [r["n"] for r in rec] == [*range(10), *range(50), *range(90)]
    assert rec.facts["length"].tolist() == [200] * 150
    rec.verify("full")
    upload(url, options, rows(7), overwrite=True)
    import fsspec

    left = {p.rpartition("/")[2] for p in fsspec.filesystem("s3", **options).ls(url, refresh=True)}
    rec = tw.open_records(url, storage_options=options, cache_dir=tmp_path / "third")
    assert [r["n"] for r in rec] == list(range(7))
    from thalweg.store.records.place import files_of

    assert left == {"newest", f"manifest.{rec.generation}", *files_of(rec._opened.manifest)}
    fsspec.filesystem("s3", **options).rm_file(f"{url}/newest")  # a copy without the note is found all the same
    assert len(tw.open_records(url, storage_options=options, cache_dir=tmp_path / "fourth")) == 7


def test_two_that_append_behind_a_url_at_once_both_appear(s3, tmp_path):
    url, options, _ = s3
    upload(url, options, rows(5))
    a, b = (tw.create_records(url, storage_options=options, append=True) for _ in range(2))
    a.write({"n": 100})
    b.write({"n": 200})
    b.close()
    a.close()
    rec = tw.open_records(url, storage_options=options, cache_dir=tmp_path / "c")
    assert [r["n"] for r in rec] == [*range(5), 200, 100]
    rec.verify("full")


class Killed(BaseException):
    """Stands for a kill: nothing that comes after it is done."""


def die_while_copying(monkeypatch, after):
    """Make a writer stop dead at the file number `after`, as another process would see it that was killed."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    copy = Remote.write

    def write(self, name, source, seen=[0]):  # noqa: B006
        seen[0] += 1
        if seen[0] == after:
            raise Killed
        copy(self, name, source)

    monkeypatch.setattr(Remote, "write", write)
    monkeypatch.setattr(farsweep.Writing, "give_up", lambda _: None)
    monkeypatch.setattr(farsweep.os, "getpid", lambda: gone.pid)
    monkeypatch.setattr(farsweep, "_birth", lambda pid: "1" if pid == gone.pid else None)


def names_behind(url, options):
    import fsspec

    fs = fsspec.filesystem("s3", **options)
    fs.invalidate_cache()
    return {p.rpartition("/")[2] for p in fs.find(url)}


# E38 E41
def test_what_a_writer_left_behind_a_url_when_it_was_killed_is_cleared_by_the_next(s3, tmp_path, monkeypatch):
    url, options, _ = s3
    upload(url, options, rows(20))
    before = names_behind(url, options)
    with monkeypatch.context() as patch:
        die_while_copying(patch, after=3)
        with pytest.raises(Killed):
            upload(url, options, rows(200), shard_bytes=20_000, append=True)
    left = names_behind(url, options) - before
    (note,) = (n for n in left if n.startswith("writing."))
    assert len(left) > 1
    import fsspec

    fs, (bucket, _, folder) = fsspec.filesystem("s3", **options), url.removeprefix("s3://").partition("/")
    key = f"{folder}/{note.removeprefix('writing.')}.00007.arrow"
    fs.call_s3("create_multipart_upload", Bucket=bucket, Key=key)
    fs.call_s3("create_multipart_upload", Bucket=bucket, Key=f"{folder}/of-somebody-else")
    upload(url, options, rows(5), append=True)  # the next start
    assert not left & names_behind(url, options)
    assert not [n for n in names_behind(url, options) if n.startswith(("writing.", "fate."))]
    begun = fs.call_s3("list_multipart_uploads", Bucket=bucket)["Uploads"]
    assert [u["Key"] for u in begun] == [f"{folder}/of-somebody-else"]
    rec = tw.open_records(url, storage_options=options, cache_dir=tmp_path / "c")
    assert [r["n"] for r in rec] == [*range(20), *range(5)]
    rec.verify("full")


def test_a_writer_that_was_taken_for_dead_gets_an_error_and_no_set_with_holes(s3, tmp_path, monkeypatch):
    url, options, _ = s3
    upload(url, options, rows(20))
    late = tw.create_records(url, storage_options=options, append=True)
    for row in rows(30):
        late.write(row)
    settle = farsweep.Writing.settle

    def stands_still(self):
        monkeypatch.setattr(farsweep.Writing, "settle", settle)
        monkeypatch.setattr(farsweep, "STALE", -1.0)
        with monkeypatch.context() as patch:
            patch.setattr(farsweep, "_machine", lambda: "another")
            assert farsweep.sweep(self.remote) == [self.prefix]
        settle(self)

    monkeypatch.setattr(farsweep.Writing, "settle", stands_still)
    with pytest.raises(RecordsError, match="taken for dead"):
        late.close()
    rec = tw.open_records(url, storage_options=options, cache_dir=tmp_path / "c")
    assert len(rec) == 20
    rec.verify("full")


def test_a_living_writer_and_rows_that_appeared_are_left_alone(s3, tmp_path, monkeypatch):
    url, options, _ = s3
    monkeypatch.setattr(farsweep.Writing, "end", lambda _: None)  # killed right behind its manifest
    upload(url, options, rows(20))
    there = names_behind(url, options)
    assert farsweep.sweep(Remote(url, options)) == []  # this process lives
    assert names_behind(url, options) == there
    monkeypatch.setattr(farsweep, "_birth", lambda _: None)  # and now it is dead: the notes go, the rows stay
    assert farsweep.sweep(Remote(url, options)) == []
    assert there - names_behind(url, options) == {n for n in there if n.startswith(("writing.", "fate."))}
    assert len(tw.open_records(url, storage_options=options, cache_dir=tmp_path / "c")) == 20


def test_local_files_of_a_dead_writer_behind_a_url_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(farsweep.tempfile, "gettempdir", lambda: str(tmp_path))
    for name in ("dead", "alive"):
        (tmp_path / f"{farsweep.STAGE}{name}").mkdir()
    life = store_fs.Life(tmp_path / f"{farsweep.STAGE}alive" / ".data-1.life", new=True).begin()
    (tmp_path / f"{farsweep.STAGE}dead" / ".data-1.life").touch()
    farsweep.sweep_stages()
    assert [p.name for p in tmp_path.iterdir()] == [f"{farsweep.STAGE}alive"]
    life.end()


def part(url, options, k, parts, **more):
    with PartWriter(url, k, parts, shard_bytes=20_000, storage_options=options, **more) as w:
        for i in range(40):
            w.write({"input_ids": np.full(100, k, np.int32), "n": k * 100 + i})
    return w


# E41
def test_many_writers_write_parts_of_one_set_straight_to_a_url(s3, tmp_path):
    url, options, _ = s3
    kept = {"storage_options": options, "cache_dir": tmp_path / "c"}
    assert declare_parts(url, 3, storage_options=options) == 0
    assert declare_parts(url, 3, storage_options=options) == 0
    with pytest.raises(RecordsError, match="3 parts are declared, 4 asked for"):
        declare_parts(url, 4, storage_options=options)
    part(url, options, 2, 3)
    part(url, options, 0, 3)
    with pytest.raises(RecordsError, match="1 of 3 parts are missing: 1"):
        tw.open_records(url, **kept)
    with pytest.raises(RecordsError, match="1 of 3 parts are missing: 1"):
        merge_parts(url, storage_options=options)
    assert part(url, options, 1, 3).files
    assert part(url, options, 1, 3).files == []  # written twice appears once
    with pytest.raises(RecordsError, match="not merged"):
        tw.open_records(url, **kept)
    first = merge_parts(url, storage_options=options)
    assert merge_parts(url, storage_options=options) == first
    rec = tw.open_records(url, **kept)
    assert [r["n"] for r in rec] == [k * 100 + i for k in range(3) for i in range(40)]
    rec.verify("full")
    assert not [n for n in names_behind(url, options) if n.startswith(("writing.", "fate."))]
    with pytest.raises(RecordsError, match="in use"):
        declare_parts(url, 2, storage_options=options)
    for k in range(2):
        part(url, options, k, 2, append=True)
    merge_parts(url, storage_options=options)
    more = tw.open_records(url, storage_options=options, cache_dir=tmp_path / "other")
    assert [r["n"] for r in more][120:] == [k * 100 + i for k in range(2) for i in range(40)]
    local = tmp_path / "local"
    for k in range(3):
        with PartWriter(local, k, 3) as w:
            for i in range(40):
                w.write({"input_ids": np.full(100, k, np.int32), "n": k * 100 + i})
    assert merge_parts(local).fingerprint == rec.fingerprint


def test_a_forked_process_reads_behind_a_url_too(s3, tmp_path):
    url, options, _ = s3
    upload(url, options, rows(100), shard_bytes=20_000)
    rec = tw.open_records(url, storage_options=options, cache_dir=tmp_path / "c")
    assert rec[0]["n"] == 0
    rec.ahead([1])
    (note,) = (tmp_path / "c").glob("*.needs")
    read, send = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(send, str(sum(r["n"] for r in rec)).encode())
        rec.ahead([])
        rec._opened._ahead._state = None
        del rec  # what ends in a fork leaves the parent's announcement alone
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 16) == b"4950"
    assert note.exists()
    rec.ahead([])
    assert not note.exists()


def test_what_a_dead_process_left_is_removed_under_its_lock(tmp_path, monkeypatch):
    cache = NodeCache(tmp_path, 100)
    (tmp_path / ".k.life").touch()
    (tmp_path / ".k.0123456789ab.part").touch()
    seen, true = [], os.unlink

    def unlink(path, *more, **words):
        if str(path).endswith(".part"):
            with pytest.raises(RecordsError):  # else what this one fetches from now on would be taken from it
                store_fs.Life(tmp_path / ".k.life").begin()
            seen.append(path)
        true(path, *more, **words)

    monkeypatch.setattr(os, "unlink", unlink)
    cache.shrink()
    assert len(seen) == 1
    assert not list(tmp_path.iterdir())
