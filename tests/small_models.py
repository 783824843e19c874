"""Tiny random models of transformers, and samples with pictures for the one that sees, for tests of isolation."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

VOCAB = 300
IMAGE, VIDEO, START, END = 290, 291, 292, 293
TEXT = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": 0,
    "pad_token_id": 0,
}


def build(name, attention):
    torch.manual_seed(0)
    if name == "llama":
        config, model = transformers.LlamaConfig(**TEXT), transformers.LlamaForCausalLM
    else:
        config, model = transformers.Qwen3Config(**TEXT, head_dim=16), transformers.Qwen3ForCausalLM
    config._attn_implementation = attention
    return model(config).eval()


def build_vl(attention):
    torch.manual_seed(0)
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]}
    vision = {
        "depth": 2, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "mlp_ratio": 2, "patch_size": 14,
        "spatial_merge_size": 2, "temporal_patch_size": 2,
    }  # fmt: skip
    config = transformers.Qwen2VLConfig(
        text_config={**TEXT, "rope_parameters": rope},
        vision_config=vision,
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        vision_start_token_id=START,
        vision_end_token_id=END,
        attn_implementation=attention,
    )
    return transformers.Qwen2VLForConditionalGeneration(config).eval()


def pictured(model, rng, grids, text):
    """Make a sample with images: real patch counts, positions from the model's own rule."""
    ids, patches = [], []
    for t, h, w in grids:
        ids += [START, *[IMAGE] * (t * h * w // 4), END, *rng.integers(1, 280, text).tolist()]
        patches.append(rng.standard_normal((t * h * w, 3 * 2 * 14 * 14)).astype(np.float32))
    if not grids:
        ids = rng.integers(1, 280, text).tolist()
    ids = np.array(ids, np.int64)
    kinds = (ids == IMAGE).astype(np.int64)
    sample = {"input_ids": ids, "labels": np.where(kinds == 1, -100, ids), "mm_token_type_ids": kinds}
    if grids:
        grid = np.array(grids, np.int64)
        positions, _ = model.model.get_rope_index(
            torch.from_numpy(ids)[None],
            mm_token_type_ids=torch.from_numpy(kinds)[None],
            image_grid_thw=torch.from_numpy(grid),
        )
        sample |= {
            "pixel_values": np.concatenate(patches), "image_grid_thw": grid, "position_ids": positions[:, 0].numpy(),
        }  # fmt: skip
    return sample
