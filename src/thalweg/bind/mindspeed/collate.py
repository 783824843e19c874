"""Collators by the names of `collate_param`: samples to the batch that a model's forward takes.

Decides what the names stand for, what padding carries in the labels, and that a batch without media gets a masked
one, so that no rank leaves the others waiting in a sharded vision tower. Decoding and layout are `encode.media`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.bind.mindspeed.keys import Collate
from thalweg.core.errors import ConfigError, nearest
from thalweg.core.sample import IGNORE_INDEX, Sample
from thalweg.encode.chat import ChatEncoder
from thalweg.encode.collate import DIALECTS, attention_mask
from thalweg.encode.collate_samples import columns_of
from thalweg.encode.media.batches import MediaCollator
from thalweg.encode.text import TextEncoder
from thalweg.plan.rows import lay_out

# name -> what the collator expects of the model: parts that it must have
COLLATORS: dict[str, tuple[str, ...]] = {
    "qwen2vl": ("image_processor",),
    "qwen2_5vl": ("image_processor",),
    "qwen3vl": ("image_processor",),
    "qwen2_5omni": ("image_processor", "feature_extractor"),
    "qwen3omni": ("image_processor", "feature_extractor"),
    "llm": (),
}


class MMCollator:
    """Makes batches of samples. Picklable.

    Args:
        param: `collate_param`, read.
        encoder: of the samples: its media parts and its padding.
        packed: each item is the list of samples of one row.

    Raises:
        ConfigError: an unknown name, or a model without the parts that it needs.
    """

    def __init__(self, param: Collate, encoder: ChatEncoder | TextEncoder, *, packed: bool = False) -> None:
        media: Any = getattr(encoder, "media", None)
        name = param.collator_id or param.model_name or ("llm" if media is None else "qwen2vl")
        if name not in COLLATORS:
            raise ConfigError(f"collator {name!r} is unknown", where="collate_param", fix=nearest(name, COLLATORS))
        for part in COLLATORS[name]:
            if getattr(media, part, None) is None:
                raise ConfigError(
                    f"collator {name!r} needs a model with {part}", where="collate_param",
                    fix="model_name_or_path of such a model, or another collator",
                )  # fmt: skip
        self.param, self.packed, self.name = param, packed, name
        self.pad_id = int(encoder.vocabulary.pad_id or 0)
        self._media: MediaCollator | None = None
        if media is not None and name != "llm" and isinstance(encoder, ChatEncoder):
            dummies = encoder.placer.dummies
            self._media = MediaCollator(
                media, packed=packed, pad_id=self.pad_id, multiple_of=param.pad_to_multiple_of,
                always_media=bool(dummies), dummies=dummies, kinds=media.feature_extractor is None,
            )  # fmt: skip

    def __call__(self, items: Sequence[Any]) -> dict[str, Any]:
        """Make the batch of some rows.

        Returns:
            `input_ids`, `labels` int64 (B, L), `attention_mask` int64 (B, L) (packed: positions that restart in its
            place), and the media arrays of all rows in token order.
        """
        rows = [[_clean(s) for s in item] for item in (items if self.packed else [[i] for i in items])]
        if self._media is not None:
            batch = self._media(rows if self.packed else [row[0] for row in rows])
        else:
            batch = self._text(rows)
        if not self.param.ignore_pad_token_for_loss:
            batch["labels"] = _padded(batch, self.pad_id, [sum(len(s["input_ids"]) for s in row) for row in rows])
        return batch

    def _text(self, rows: list[list[Sample]]) -> dict[str, Any]:
        columns = columns_of([_text_only(s) for row in rows for s in row])
        arrays = lay_out(
            columns.tokens, np.cumsum([0, *map(len, rows)]), labels=columns.labels, packed=self.packed,
            pad_id=self.pad_id, pad_to_multiple_of=self.param.pad_to_multiple_of,
        )  # fmt: skip
        batch: dict[str, Any] = DIALECTS["hf"](arrays)
        if not self.packed:
            batch["attention_mask"] = attention_mask(arrays)
        return batch


def _clean(sample: Mapping[str, Any]) -> Sample:
    return {k: v for k, v in sample.items() if v is not None and k != "attention_mask"}


def _text_only(sample: Sample) -> Sample:
    return {k: v for k, v in sample.items() if k in {"input_ids", "labels"}}


def _padded(batch: Mapping[str, Any], pad_id: int, sizes: list[int]) -> NDArray[np.int64]:
    """Put the padding's own id where padding is not to be ignored in the loss."""
    labels: NDArray[np.int64] = batch["labels"]
    mask = batch.get("attention_mask")
    real = np.arange(labels.shape[1]) < np.array(sizes)[:, None] if mask is None else np.asarray(mask) == 1
    out: NDArray[np.int64] = np.where(real | (labels != IGNORE_INDEX), labels, pad_id)
    return out
