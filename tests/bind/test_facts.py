"""What real libraries do with a batch and a feed, as the names of the interface take it for granted.

F1 to F3 are in tests/encode/test_isolation.py, F6 in tests/bind/torch, F7 and F8 in tests/bind/trainer, F10 in
tests/bind/megatron and tests/encode/test_collate.py, F11 in tests/check/test_mindspeed.py.
"""

import inspect

import numpy as np
import pytest

import thalweg as tw
from thalweg.core.batch import Batch

torch = pytest.importorskip("torch")


def feed():
    rows = [{"input_ids": np.arange(3, 4 + n % 9, dtype=np.int32), "id": f"r{n}"} for n in range(20)]
    return tw.from_dataset(rows, id="id").shuffle().pack(16, overlong="drop")


class Strict(torch.nn.Module):
    """A model without **kwargs."""

    def forward(
        self, input_ids, labels, position_ids, cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k, use_cache
    ):
        return input_ids.shape


def test_what_is_for_the_trainer_is_no_key_and_a_model_without_kwargs_takes_a_batch_as_it_is():  # F4
    batch = next(iter(tw.Loader(feed().batch(2))))
    assert Strict()(**batch) == (2, 16)
    assert batch.info.num_label_tokens > 0
    with pytest.raises(TypeError, match="num_label_tokens"):
        Strict()(**batch, num_label_tokens=batch.info.num_label_tokens)


def test_a_model_of_transformers_swallows_unknown_keys_without_a_word():  # F4
    transformers = pytest.importorskip("transformers")
    size = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=32, **size))
    batch = next(iter(tw.Loader(feed().batch(2))))
    with torch.no_grad():
        assert model(**batch, num_label_tokens=3, sample_ids=["a"], step=9).loss == model(**batch).loss


def test_info_survives_where_a_copy_asks_the_batch_and_not_where_a_dict_is_built_anew():  # F5
    send = pytest.importorskip("accelerate.utils").send_to_device
    batch = next(iter(tw.Loader(feed().batch(2))))
    moved = send(batch, torch.device("cpu"))
    assert type(moved) is Batch
    assert moved.info.ids == batch.info.ids
    rebuilt = type(batch)(dict(batch))  # as Trainer._prepare_input does
    assert type(rebuilt) is Batch
    assert rebuilt.info.ids == []
    transformers = pytest.importorskip("transformers")
    kept = transformers.Trainer._prepare_input
    assert "type(data)(" in inspect.getsource(kept)


@pytest.mark.parametrize("made", [lambda f: torch.utils.data.DataLoader(f, shuffle=True), len, lambda f: f[0]])
def test_torch_refuses_a_feed_as_a_dataset_with_the_remedy(made):  # F9
    with pytest.raises(TypeError, match=r"tw\.Loader\(feed\)|feed\.at"):
        made(feed().batch(2))
