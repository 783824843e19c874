"""What the files of a model's folder say of its processor: one file for each part, or one for all (transformers 5).

Decides which file counts where there are both. Loads no processor.
"""

import json
from pathlib import Path
from typing import Any


def told(folder: Path) -> dict[str, Any]:
    """Give the settings of image processor and feature extractor together, and `processor_class`; {} for none."""
    whole = _read(folder / "processor_config.json")
    parts = [whole.get(part) or {} for part in ("image_processor", "feature_extractor")]
    named = {k: v for k, v in whole.items() if k == "processor_class" and any(parts)}
    out: dict[str, Any] = {}
    for one in (_read(folder / "preprocessor_config.json"), *parts, named):  # the order of transformers
        out |= one
    return out


def told_of_clips(folder: Path) -> dict[str, Any]:
    """Give the settings of the video processor; {} where no file has them."""
    whole: dict[str, Any] = _read(folder / "processor_config.json").get("video_processor") or {}
    return whole or _read(folder / "video_preprocessor_config.json")


def _read(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return found
