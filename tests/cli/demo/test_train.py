"""The demo's training process: what it recovers from a batch, and a model that takes any token id."""

import numpy as np
import pytest
from xxhash import xxh3_64_hexdigest

pytestmark = pytest.mark.slow  # torch and transformers load for seconds


def row(*documents, length):
    """A packed row as collate "hf" gives it: tail padding is one more document."""
    from thalweg.cli.demo.feed import PAD

    tokens = [t for d in documents for t in d]
    tail = length - len(tokens)
    positions = [p for d in documents for p in range(len(d))] + list(range(tail))
    return tokens + [PAD] * tail, positions


def test_documents_are_recovered_from_the_tokens_and_padding_is_none():
    torch = pytest.importorskip("torch")
    from thalweg.cli.demo.train import segments

    documents = [[5, 6, 7], [8], [9, 9]]
    rows = [row(*documents[:2], length=6), row(documents[2], length=6)]
    batch = {
        "input_ids": torch.tensor([tokens for tokens, _ in rows]),
        "position_ids": torch.tensor([positions for _, positions in rows]),
    }
    assert segments(batch) == [[xxh3_64_hexdigest(np.array(d, "<i4").tobytes()), len(d)] for d in documents]


def test_the_model_takes_any_id_of_the_tokenizer_and_keeps_documents_apart():
    torch = pytest.importorskip("torch")
    from thalweg.cli.demo.train import make_model

    model = make_model()
    first, second = [151_643, 3, 4, 5], [7, 8, 151_668]
    ids, positions = torch.tensor([first + second]), torch.tensor([[0, 1, 2, 3, 0, 1, 2]])
    labels = torch.tensor([[-100, 3, 4, 5, -100, 8, 151_668]])
    with torch.no_grad():
        packed = model(input_ids=ids, labels=labels, position_ids=positions, use_cache=False)
        alone = model(input_ids=torch.tensor([second]), labels=labels[:, 4:], use_cache=False)
    assert torch.isfinite(packed.loss)
    assert torch.allclose(packed.logits[:, 4:], alone.logits, atol=1e-5)
