"""A service that CI promises cannot be missing without a word."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

MODULE = "import pytest\npytest.importorskip('av')\ndef test_it():\n    pass\n"
FIXTURE = """
import pytest
@pytest.fixture
def clip():
    pytest.importorskip('av')
def test_it(clip):
    pass
"""


@pytest.mark.parametrize("body", [MODULE, FIXTURE], ids=["module", "fixture"])
@pytest.mark.parametrize(("asked", "status"), [("slurm,s3,ray,media", 1), ("slurm", 0), ("", 0)])
def test_a_package_that_is_required_and_missing_fails_its_tests(tmp_path, body, asked, status):
    (tmp_path / "test_media.py").write_text("import sys\nsys.modules['av'] = None\n" + body)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "required", "-p", "no:cacheprovider", "test_media.py"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "THALWEG_REQUIRE": asked, "PYTHONPATH": str(Path(__file__).parents[1])},
    )  # fmt: skip
    # a file whose only module skips itself collects no test: pytest says 5
    assert done.returncode in ({1, 2} if status else {0, 5}), done.stdout
    assert ("THALWEG_REQUIRE says that it is here" in done.stdout) == bool(status)
