"""Small corpora and pipelines that the tests of executors share."""

import json
import os
import sys
from pathlib import Path

import pytest

from thalweg.run import script

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "store")]  # servers that tests share


@pytest.fixture
def corpus(tmp_path):
    """Eight files of 50 documents; the folder's path."""
    folder = tmp_path / "in"
    folder.mkdir()
    for f in range(8):
        rows = [
            {"text": f"document {f} {i} " + "word " * (i % 7), "id": f"{f}-{i}", "metadata": {"n": i}}
            for i in range(50)
        ]
        (folder / f"{f}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return folder


@pytest.fixture(autouse=True)
def quiet():
    """No progress on the terminal of the tests."""
    with script.launching(quiet=True):
        yield


@pytest.fixture(scope="session")
def s3_server():
    """A real S3 server behind a proxy that counts requests."""
    pytest.importorskip("s3fs")
    moto = pytest.importorskip("moto.server")
    from s3_proxy import Proxy

    given = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    given |= {"AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true"}
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    proxy = Proxy(server.get_host_and_port()[1])
    yield proxy
    proxy.close()
    server.stop()
    for name, value in before.items():
        os.environ.pop(name)
        if value is not None:
            os.environ[name] = value


@pytest.fixture
def bucket(s3_server, tmp_path):
    """A bucket of this test's own: (URL, options of the file system)."""
    import fsspec

    s3_server.harm = lambda *_: None
    options = {"endpoint_url": s3_server.url, "config_kwargs": {"retries": {"max_attempts": 1}}}
    name = "b" + "".join(c for c in tmp_path.name.lower() if c.isalnum())[-40:]
    fsspec.filesystem("s3", **options).mkdir(name)
    s3_server.seen.clear()
    return f"s3://{name}", options
