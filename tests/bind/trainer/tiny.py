"""A tiny model and real conversations, for Trainers that run in seconds."""

import json
from pathlib import Path

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM, TrainerCallback

import thalweg as tw

__all__ = ["SHARED", "TrainerCallback", "feed", "model", "pairs", "samples", "small_tokenizer"]

SHARED = Path(__file__).resolve().parents[3].parent / "shared"


def model(vocab=128):
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "head_dim": 16,
    }
    return Qwen3ForCausalLM(
        Qwen3Config(vocab_size=vocab, num_key_value_heads=1, bos_token_id=None, eos_token_id=2, pad_token_id=0, **sizes)
    )


def samples(n=90, seed=0):
    """Give samples of 4 to 40 skewed tokens whose first third is not trained."""
    rng = np.random.default_rng(seed)
    out = []
    for i in range(n):
        k = int(rng.integers(4, 40))
        ids = (3 + rng.zipf(1.5, k) % 120).astype(np.int32)
        labels = ids.astype(np.int64)
        labels[: k // 3] = -100
        out.append({"input_ids": ids, "labels": labels, "id": f"s{i}"})
    return out


def feed(n=90, seed=0):
    return tw.from_dataset(samples(n, seed), id="id")


def pairs(n=24):
    """Give preference pairs of real conversations, as token ids of bytes."""
    rows = json.loads((SHARED / "data/chat/dpo_en_demo.json").read_text(encoding="utf-8"))[:n]
    out = []
    for i, row in enumerate(rows):
        texts = row["conversations"][0]["value"], row["chosen"]["value"], row["rejected"]["value"]
        prompt, chosen, rejected = (np.frombuffer(t.encode()[:24], np.uint8).astype(np.int32) % 120 + 3 for t in texts)
        out.append({"prompt_ids": prompt, "chosen_ids": chosen, "rejected_ids": rejected, "id": f"p{i}"})
    return out


def small_tokenizer(size=600):
    """Give Qwen's tokenizer, template and special tokens with few words, learned from the real conversations."""
    from transformers import AutoTokenizer

    from thalweg.encode import qwen_tokenizer

    rows = json.loads((SHARED / "data/chat/alpaca_en_demo.json").read_text(encoding="utf-8"))[:60]
    texts = [" ".join(str(v) for v in row.values()) for row in rows]
    return AutoTokenizer.from_pretrained(str(qwen_tokenizer())).train_new_from_iterator(texts, size)
