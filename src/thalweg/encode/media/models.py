"""Which way of seeing and hearing a model has: patches of a Qwen model, or one repeated token of a LLaVA model.

Decides by the model's processor, an object or the files of its folder. What each way counts is `families` and `tiles`.
"""

from pathlib import Path
from typing import Any, TypeAlias

from thalweg.core.extras import need
from thalweg.encode.media.families import Media
from thalweg.encode.media.folders import told
from thalweg.encode.media.tiles import Tiles, takes

Seeing: TypeAlias = Media | Tiles


def media_of(model: Any, **settings: Any) -> Seeing | None:
    """Find the media parts of a model; None where it has none.

    Args:
        model: what this gave before; a processor; or a folder with preprocessor_config.json or processor_config.json.
        settings: as of `Media`; `Tiles` takes `folder` and `limits` of them.

    Raises:
        ConfigError: a processor that is of neither way.
    """
    if isinstance(model, Media | Tiles):
        return model
    processor: Any = _tiling(Path(model)) if isinstance(model, (str, Path)) else model
    images = getattr(processor, "image_processor", None)
    if images is None or hasattr(images, "patch_size") or not takes(processor):
        return Media.of(model, **settings)
    return Tiles(processor, settings.get("folder"), settings.get("limits"))


def _tiling(folder: Path) -> Any:
    """Load the processor of a folder whose pictures have no patches of their own; None for any other folder."""
    config = told(folder)
    if "temporal_patch_size" in config or "image_processor_type" not in config:
        return None
    processor = need("transformers", why="the processor of a model").AutoProcessor.from_pretrained(str(folder))
    return processor if takes(processor) else None
