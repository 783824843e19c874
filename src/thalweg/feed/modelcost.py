"""What documents cost a model, from its configuration: a folder, a file, a mapping or an object.

Decides where the sizes of a model stand in the configurations that people have. What follows from the sizes is
`plan.balance`. Loads no weights and asks no network.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from thalweg.core.errors import ConfigError
from thalweg.plan.balance import Cost

# name in most configurations -> its older names
_NAMES = {
    "hidden_size": ("n_embd", "d_model"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads"),
    "intermediate_size": ("n_inner", "ffn_dim", "ffn_hidden_size"),
    "num_key_value_heads": (),
    "head_dim": (),
    "vocab_size": (),
    "num_experts_per_tok": (),
    "moe_intermediate_size": (),
}
_PARTS = ("text_config", "llm_config", "language_config", "thinker_config")  # the language model of a larger one


def cost_of(model: Any) -> Cost:
    """Give the cost of documents: a * n + b * n^2 operations, counted as `Cost.of_model` says.

    Args:
        model: a folder that has a config.json, such a file, a mapping, a configuration object of `transformers` (or
            anything with its attributes), or a model that has one as `.config`.

    Raises:
        ConfigError: no configuration is there, or a size is missing.
    """
    return Cost.of_model(sizes_of(model))


def sizes_of(model: Any) -> dict[str, Any]:
    """Read the sizes of a model under their usual names; the language part where a model has several."""
    levels = [_read(model)]
    while (part := next((levels[0][p] for p in _PARTS if levels[0].get(p)), None)) is not None:
        levels.insert(0, _read(part))
    out: dict[str, Any] = {}
    for name, others in _NAMES.items():
        values = (config.get(n) for config in levels for n in (name, *others))
        value = next((v for v in values if v is not None), None)
        if value is not None:
            out[name] = value
    return out


def _read(model: Any) -> dict[str, Any]:
    if isinstance(model, str | os.PathLike):
        path = Path(model)
        path = path / "config.json" if path.is_dir() else path
        if not path.is_file():
            raise ConfigError(
                f"no configuration of a model at {str(model)!r}", where="balance(model=...)",
                fix="a folder with config.json, such a file, a mapping, or a configuration object",
            )  # fmt: skip
        model = json.loads(path.read_text(encoding="utf-8"))
    config: Any = model if isinstance(model, Mapping) else getattr(model, "config", model)
    if isinstance(config, Mapping):
        return dict(config)
    if hasattr(config, "to_dict"):
        return dict(config.to_dict())
    names = [*_NAMES, *(n for others in _NAMES.values() for n in others), *_PARTS]
    return {n: getattr(config, n) for n in names if getattr(config, n, None) is not None}
