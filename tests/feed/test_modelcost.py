"""What a document costs a model: read from any configuration people have, and right for the real model's matrices."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

import thalweg as tw
from thalweg.core.errors import ConfigError
from thalweg.feed.modelcost import cost_of, sizes_of

LLAMA = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 300,
}  # fmt: skip


def feed():
    return tw.from_dataset([{"input_ids": np.zeros(n, np.int32)} for n in (3, 9, 30)]).pack(32)


@pytest.mark.parametrize("how", ["mapping", "folder", "file", "object", "model", "text part", "nested parts"])
def test_the_sizes_are_found_in_any_form(how, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    given = {
        "mapping": LLAMA,
        "folder": tmp_path,
        "file": str(tmp_path / "config.json"),
        "object": SimpleNamespace(**LLAMA),
        "model": SimpleNamespace(config=SimpleNamespace(to_dict=lambda: LLAMA)),
        "text part": {"model_type": "seeing", "hidden_size": 9, "vision_config": {}, "text_config": LLAMA},
        "nested parts": {"thinker_config": {"text_config": LLAMA, "audio_config": {"hidden_size": 8}}},
    }[how]
    assert sizes_of(given) == LLAMA
    cost = cost_of(LLAMA)
    stage = feed().balance(model=given).stages[-1]
    assert (stage.by, stage.a, stage.b) == ("cost", cost.a, cost.b)


def test_older_names_are_known():
    old = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_inner": 128, "vocab_size": 300}
    assert sizes_of(old) == {k: v for k, v in LLAMA.items() if k != "num_key_value_heads"}


@pytest.mark.slow
def test_a_token_costs_two_operations_for_each_weight_of_the_real_models_matrices():
    transformers = pytest.importorskip("transformers")
    for config in (transformers.LlamaConfig(**LLAMA), transformers.Qwen3Config(**LLAMA, head_dim=32)):
        config.tie_word_embeddings = False
        model = transformers.AutoModelForCausalLM.from_config(config)
        weights = sum(p.numel() for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name)
        cost = cost_of(model)
        assert cost.a == 2 * weights
        assert cost.b == 2 * config.num_hidden_layers * config.num_attention_heads * config.head_dim


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"model": {"hidden_size": 4}}, "num_hidden_layers"),
        ({"model": "no/such/folder"}, "no configuration of a model at 'no/such/folder'"),
        ({"model": LLAMA, "a": 2.0}, "gives a and b"),
        ({"model": LLAMA, "by": "tokens"}, "gives a and b"),
    ],
)
def test_what_cannot_be_meant_is_refused(words, said):
    with pytest.raises(ConfigError, match=said):
        feed().balance(**words)
