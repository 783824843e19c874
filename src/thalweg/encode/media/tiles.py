"""Pictures for models that repeat one token: a fixed number a picture (LLaVA), or by the tiles it is cut into (anyres).

Decides that the model's own processor counts, from width and height alone, and cuts; and refuses processors that write
anything else than one token again and again. Knows no conversation and no batch.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from thalweg.core.errors import ConfigError
from thalweg.core.state import digest
from thalweg.encode.errors import EncodeError
from thalweg.encode.media.areas import fit_area
from thalweg.encode.media.families import Arrays, Limits, Measured, told_of
from thalweg.encode.media.pictures import picture, picture_size
from thalweg.encode.media.references import Folder


class Tiles:
    """Counts and features of a model that sees pictures only. The counterpart of `families.Media`.

    Args:
        processor: of the model (`LlavaProcessor`, `LlavaNextProcessor` and their kin).
        folder: where paths start.
        limits: areas of pictures.

    Raises:
        ConfigError: a processor that cannot count from sizes, or that writes more than one token repeated.
    """

    flat: ClassVar[bool] = True  # positions count up, as in text
    merge, mixed, clip_step, behind, stamps, feature_extractor = 1, None, None, "side", None, None

    def __init__(self, processor: Any, folder: Folder | None = None, limits: Limits | None = None) -> None:
        self.processor, self.image_processor = processor, processor.image_processor
        self.folder, self.limits = folder or Folder(), limits or Limits()
        self.tells_sizes = False  # the model is told the size of each picture: it was cut into tiles
        if not takes(processor) or not self._repeats():
            raise ConfigError(
                f"{type(processor).__name__} does not write one token again and again for a picture",
                where="processor=",
                fix="a processor of a Qwen-VL, Qwen-Omni or LLaVA model; for others encode with your own function",
            )  # fmt: skip

    @property
    def fingerprint(self) -> str:
        """Name all that decides counts and features."""
        own = [getattr(self.processor, n, None) for n in ("patch_size", "vision_feature_select_strategy")]
        return digest([type(self.processor).__name__, told_of(self.image_processor), repr([own, self.limits])])

    def _repeats(self) -> bool:
        """Say whether a picture becomes nothing but one token, as often as is counted, tall or wide."""
        token = self.processor.image_token
        for height, width in ((60, 200), (200, 60)):
            made = dict(self.image_processor(images=[np.zeros((height, width, 3), np.uint8)], return_tensors="np"))
            self.tells_sizes = "image_sizes" in made
            written = self.processor.replace_image_token(made, 0)
            if written != token * self._tokens(height, width):
                return False
        return True

    def _tokens(self, height: int, width: int) -> int:
        counted = self.processor._get_num_multimodal_tokens(image_sizes=[[height, width]])  # noqa: SLF001 - the only way without pixels
        return int(counted["num_image_tokens"][0])

    def measure(self, kind: str, reference: Any) -> Measured:
        """Count the tokens of a picture from its header.

        Raises:
            EncodeError: it is not there, not readable, or no picture.
        """
        if kind != "image":
            raise EncodeError(f"this model takes no {kind}", reason=f"model without {kind}")
        width, height = self._sized(*picture_size(reference, self.folder))
        return Measured(self._tokens(height, width), size=(height, width) if self.tells_sizes else None)

    def features(self, kind: str, references: Sequence[Any]) -> Arrays:
        """Decode pictures and cut them, in order.

        Returns:
            `pixel_values` float32 (n, 3, h, w), or (n, tiles, 3, h, w) with `image_sizes` int64 (n, 2).
        """
        assert kind == "image"
        pictures: list[Any] = []
        for reference in references:
            image = picture(reference, self.folder)
            size = self._sized(*image.size)
            pictures.append(image if size == image.size else image.resize(size, 3))
        made = self.image_processor(images=pictures, return_tensors="np")
        return {k: np.asarray(made[k]) for k in ("pixel_values", "image_sizes") if k in made}

    def _sized(self, width: int, height: int) -> tuple[int, int]:
        return fit_area(width, height, self.limits.image_max_pixels, self.limits.image_min_pixels)


def takes(model: Any) -> bool:
    """Say whether an object is a processor that counts pictures by their sizes."""
    return all(hasattr(model, n) for n in ("image_processor", "image_token", "replace_image_token",
                                            "_get_num_multimodal_tokens"))  # fmt: skip


def even(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Bring pictures of different numbers of tiles to the most, with tiles that no size counts."""
    counts = [s["pixel_values"].shape[1] for s in samples if "pixel_values" in s and s["pixel_values"].ndim == 5]
    if len(set(counts)) < 2:
        return samples
    out: list[dict[str, Any]] = []
    for sample in samples:
        if "pixel_values" in sample:
            more = max(counts) - sample["pixel_values"].shape[1]
            pixels = np.pad(sample["pixel_values"], ((0, 0), (0, more), *((0, 0),) * 3))
            sample = {**sample, "pixel_values": pixels}  # noqa: PLW2901
        out.append(sample)
    return out
