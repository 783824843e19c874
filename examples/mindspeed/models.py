"""Tiny random Qwen-Omni models where a configuration looks for the real ones: decides sizes, knows no data."""

import json
from pathlib import Path

import torch
import transformers as tf
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from thalweg.encode import load_tokenizer, qwen_tokenizer

ROPE = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]}
HEADS = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
TEXT = {"hidden_size": 64, "intermediate_size": 128, "rope_parameters": ROPE, **HEADS}
VISION = {"depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 64}
AUDIO = {"encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 64, "d_model": 32, "output_dim": 64}
OLD = "<|IMAGE|> <|VIDEO|> <|AUDIO|> <|vision_bos|> <|vision_eos|> <|audio_bos|> <|audio_eos|>"
NEW = "<|image_pad|> <|video_pad|> <|audio_pad|> <|vision_start|> <|vision_end|> <|audio_start|> <|audio_end|>"
WORDS = ["What moves and what sounds? A wave, a tone, a number."]  # a vocabulary of few words: the model is small, too
# family -> its media tokens, the ending of the keys that hold them, patch size, further settings of its three parts
FAMILIES = {
    "Qwen2_5Omni": (OLD, "_token_index", 14, {}, {"fullatt_block_indexes": [1]}, {}),
    "Qwen3OmniMoe": (
        NEW, "_token_id", 16, {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
        {"deepstack_visual_indexes": [0], "patch_size": 16}, {"downsample_hidden_size": 16},
    ),
}  # fmt: skip


def make(folder: str | Path, name: str) -> Path:
    """Write tokenizer, processor and random weights of a model called `name`, unless they are there."""
    folder, family = Path(folder), "Qwen3OmniMoe" if "Qwen3" in name else "Qwen2_5Omni"
    tokens, key, patch, text, vision, audio = FAMILIES[family]
    if not (folder / "config.json").is_file():
        tokenizer = load_tokenizer(qwen_tokenizer()).train_new_from_iterator(WORDS, 400)
        tokenizer.add_special_tokens({"extra_special_tokens": tokens.split()})
        tokenizer.save_pretrained(folder)
        ids = tokenizer.convert_tokens_to_ids(tokens.split())
        names = [f"{kind}{key}" for kind in ("image", "video", "audio")]
        names += [f"{kind}_{end}_token_id" for kind in ("vision", "audio") for end in ("start", "end")]
        sees = Qwen2VLImageProcessorPil(min_pixels=16 * patch**2, max_pixels=256 * patch**2, patch_size=patch).to_dict()
        hears = tf.WhisperFeatureExtractor(feature_size=128).to_dict()
        (folder / "preprocessor_config.json").write_text(json.dumps({**hears, **sees}))
        config = getattr(tf, f"{family}ThinkerConfig")(
            text_config={**TEXT, **text, "vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id},
            vision_config={**VISION, **vision}, audio_config={**AUDIO, **audio}, **dict(zip(names, ids, strict=True)),
        )  # fmt: skip
        torch.manual_seed(0)
        getattr(tf, f"{family}ThinkerForConditionalGeneration")(config).save_pretrained(folder)
    assert (folder / "config.json").is_file()
    return folder


assert all(len(family[0].split()) == 7 for family in FAMILIES.values())
