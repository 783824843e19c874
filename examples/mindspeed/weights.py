"""The model that a configuration names, with what it freezes: decides where weights come from, knows no data."""

from pathlib import Path
from typing import Any

import torch
import transformers as tf


def load(name: str, own: str | None, freeze: list[str], seed: int) -> Any:
    """Load the model at `own`, a trainer's own folder, where there is one, else at `name`."""
    torch.manual_seed(seed)
    source = own if own and (Path(own) / "config.json").is_file() else name
    kind = getattr(
        tf, tf.AutoConfig.from_pretrained(source).__class__.__name__.replace("Config", "ForConditionalGeneration")
    )
    model = kind.from_pretrained(source)
    for part, parameter in model.named_parameters():
        parameter.requires_grad &= not any(part.startswith(f"{name}.") or part == name for name in freeze)
    assert any(p.requires_grad for p in model.parameters())
    return model


assert hasattr(tf, "Qwen3OmniMoeThinkerForConditionalGeneration")
