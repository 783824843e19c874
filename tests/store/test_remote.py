"""Record sets on a real S3 server: few requests, one download for all ranks, faults survived, a bounded cache."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import thalweg as tw
from thalweg.core.errors import IntegrityError, RecordsError
from thalweg.store.cache import NodeCache

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
def test_four_processes_on_an_empty_cache_fetch_each_file_once(s3, tmp_path):
    url, options, server = s3
    upload(url, options, rows(), shard_bytes=50_000)
    server.seen.clear()
    program = f"""
import json, thalweg as tw
rec = tw.open_records({url!r}, storage_options=json.loads({json.dumps(options)!r}), cache_dir={str(tmp_path / "c")!r})
print(sum(int(r["input_ids"].sum()) for r in rec))
"""
    running = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for _ in range(4)]
    said = {p.communicate()[0].strip() for p in running}
    assert said == {str(sum(int(r["input_ids"].sum()) for r in rows()))}
    gets = [path.partition("?")[0] for method, path in server.seen if method == "GET"]
    assert len(gets) == len(set(gets))
    assert not [p.name for p in (tmp_path / "c").iterdir() if p.name.startswith(".")]


@pytest.mark.parametrize("harm", [503, "cut"])
def test_a_server_that_fails_now_and_then_is_survived(s3, tmp_path, harm):
    url, options, server = s3
    upload(url, options, rows(200), shard_bytes=50_000)
    server.harm = lambda number, method, path: harm if method == "GET" and number % 3 == 1 else None
    rec = tw.open_records(url, storage_options=options, cache_dir=tmp_path / "c")
    assert [r["n"] for r in rec] == list(range(200))
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
    assert rec[1]["n"] == 1  # evicted from the directory, still mapped


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
from thalweg.store.cache import NodeCache
def fetch(target):
    target.write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
NodeCache(Path({str(tmp_path / "c")!r}), 10**6).get("key", fetch)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -9
    assert len(list((tmp_path / "c").iterdir())) == 2
    assert cache.get("key", lambda target: target.write_bytes(b"whole") and None).read_bytes() == b"whole"
    assert [p.name for p in (tmp_path / "c").iterdir()] == ["key"]
