"""Every example runs as written, in an empty folder with an empty cache; those on real media get their packages."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from warm import Warm, needs_of

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PACKAGES = {"vision_sft": "tuxpaint-stamps-default", "speech_sft": "pocketsphinx-testdata"}  # of Debian
NEEDED = {"preference_pairs": "trl", "s3_records": "moto", "vision_sft": "PIL", "speech_sft": "soundfile"}
NEEDED |= {"lightning_fit": "lightning", "accelerate_loop": "accelerate", "torchtitan_loader": "torchtitan"}
NEEDED |= {"stateful_dataloader": "torchdata"}


def unpacked(package, folder):
    """Fetch a package of Debian and unpack it, installing nothing; None where that cannot be done."""
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        return None
    kept = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "thalweg-tests" / package
    if not (kept / "whole").exists():
        subprocess.run(["apt-get", "update", "-qq"], cwd=folder, capture_output=True, check=False)
        got = subprocess.run(["apt-get", "download", package], cwd=folder, capture_output=True, check=False)
        files = list(folder.glob("*.deb"))
        if got.returncode or not files:
            return None
        kept.mkdir(parents=True, exist_ok=True)
        subprocess.run(["dpkg", "-x", str(files[0]), str(kept)], check=True)
        (kept / "whole").touch()
    return kept


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """Runs examples with a cache of their own, empty at first."""
    fresh = Warm(XDG_CACHE_HOME=str(tmp_path_factory.mktemp("cache")))
    yield fresh
    fresh.close()


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_an_example_runs_as_written(example, tmp_path, fresh):
    if example.stem in NEEDED:
        pytest.importorskip(NEEDED[example.stem])
    words = []
    if example.stem in PACKAGES:
        folder = unpacked(PACKAGES[example.stem], tmp_path)
        if folder is None:
            pytest.skip(f"the Debian package {PACKAGES[example.stem]} can't be fetched here")
        words = [str(folder)]
    done = fresh.run(example, *words, needs=needs_of(example), cwd=tmp_path)
    assert done.returncode == 0, done.out[-1000:] + done.err[-3000:]
