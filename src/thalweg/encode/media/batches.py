"""Samples with media become a batch that `model(**batch)` takes: decoded by threads, laid out, kept apart.

Decides when media are decoded (here, not before), their order (that of the tokens, over all rows), and what a batch
without any medium gets where sharded training would hang. Knows no loader: it is a function of samples, to be given
as `collate=`.
"""

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from thalweg.core.errors import ConfigError
from thalweg.core.sample import IGNORE_INDEX, Sample
from thalweg.encode.collate import DIALECTS
from thalweg.encode.collate_samples import columns_of
from thalweg.encode.errors import EncodeError, record_id
from thalweg.encode.media.families import TYPES
from thalweg.encode.media.models import Seeing
from thalweg.encode.media.placing import GRIDS, REFERENCES, SIZES, load, text_positions
from thalweg.encode.media.tiles import even
from thalweg.encode.spans import labels_of
from thalweg.plan.rows import lay_out

_NOT_MODEL = {"media_tokens"}
_COLUMNS = {
    "image": ("images", "videos", "pixel_values", "pixel_values_videos"),
    "audio": ("audios", "input_features"),
}
_DUMMIES: dict[str, Any] = {  # a black picture, half a second of silence
    "image": np.zeros((56, 56, 3), np.uint8),
    "audio": {"array": np.zeros(8000, np.float32), "sampling_rate": 16_000},
}


class MediaCollator:
    """Makes batches of samples that `ChatEncoder` gave. Picklable.

    Args:
        media: counts and features of the model.
        packed: True: each item is a list of samples that share a row; False: each item is a sample, padded on the
            right.
        pad_id: id of padding.
        capacity: tokens of a row; None: the longest, rounded up to a multiple of `multiple_of`.
        always_media: add a masked dummy to a batch without pictures and clips, and one to a batch without sounds, so
            that each tower of every rank takes part in every step.
        dummies: kind ("image", "audio") -> ids of its tokens, (before, one place, after), as `ChatEncoder` knows them;
            needed with `always_media`.
        kinds: False leaves `mm_token_type_ids` out, for models that do not take it.
        threads: how many decode.
        on_error: of a sample whose medium is damaged or changed: "raise", or "skip": it becomes padding, a warning
            names it, and `skipped` counts it by its reason.

    Raises:
        ConfigError: `always_media` without tokens for a dummy, or an unknown `on_error`.
    """

    __slots__ = ("__dict__", "__weakref__", "skipped")  # what was counted is no part of the function's identity

    def __init__(
        self,
        media: Seeing,
        *,
        packed: bool = False,
        pad_id: int = 0,
        capacity: int | None = None,
        multiple_of: int = 1,
        always_media: bool = False,
        dummies: Mapping[str, tuple[int, int, int]] | None = None,
        kinds: bool = True,
        threads: int = 4,
        on_error: str = "raise",
    ) -> None:
        self._arguments = {k: v for k, v in locals().items() if k not in {"self", "__class__"}}
        self.media, self.packed, self.pad_id, self.capacity = media, packed, pad_id, capacity
        self.multiple_of = multiple_of
        self.dummies, self.threads = dict(dummies or {}) if always_media else {}, threads
        if always_media and not self.dummies:
            raise ConfigError(
                "always_media=True knows no tokens for a dummy", fix="encoder.collator(always_media=True)"
            )
        if on_error not in {"raise", "skip"}:
            raise ConfigError(f"unknown on_error {on_error!r}", where="collator", fix='"raise" or "skip"')
        self.kinds, self.on_error = kinds and not media.flat, on_error
        self.skipped: Counter[str] = Counter()

    def __call__(self, items: Sequence[Any]) -> dict[str, Any]:
        """Make the batch of some rows.

        Args:
            items: samples, or lists of samples where packed.

        Returns:
            What the dialect "hf" gives for rows of this kind, `position_ids` (4, B, L) with the text's own first, and
            the media arrays of all rows in token order.

        Raises:
            EncodeError: a medium cannot be decoded, or changed since it was counted.
            ConfigError: a sample has weights, which no model takes.
        """
        given = [list(item) if self.packed else [item] for item in items]
        loaded = iter(self._loaded([self._ready(s) for row in given for s in row]))
        rows: list[list[Sample]] = [[next(loaded) for _ in row] for row in given]
        capacity = self.capacity
        for kind, tokens in self.dummies.items():
            if not any(_takes(s, kind) for row in rows for s in row):
                rows = self._with_dummy(rows, kind, tokens)
                longest = max(sum(len(s["input_ids"]) for s in row) for row in rows)
                if capacity is not None and longest > capacity:  # a full row: nothing of it is lost
                    capacity = -(-longest // self.multiple_of) * self.multiple_of
        columns = columns_of(even(_even([s for row in rows for s in row])))
        counts = np.cumsum([0, *map(len, rows)])
        arrays = lay_out(
            columns.tokens,
            counts,
            spans=columns.spans,
            labels=columns.labels,
            rope=columns.rope,
            aligned=columns.aligned,
            packed=self.packed,
            capacity=capacity,
            pad_id=self.pad_id,
            pad_to_multiple_of=self.multiple_of,
        )
        batch: dict[str, Any] = {**DIALECTS["hf"](arrays), **columns.media}
        return batch

    def _loaded(self, samples: list[Sample]) -> list[Sample]:
        """Decode the media of samples; one that cannot be decoded becomes one without tokens, where that is allowed."""
        with ThreadPoolExecutor(self.threads, thread_name_prefix="thalweg-media") as pool:
            found = list(pool.map(self._load, samples))
        out: list[Sample] = []
        for sample in found:
            if isinstance(sample, EncodeError):
                if self.on_error == "raise":
                    raise sample
                self.skipped[sample.reason] += 1
                warnings.warn(f"left out: {sample}", stacklevel=2)
                sample = self._ready({"input_ids": np.empty(0, np.int32), "loss_spans": np.empty((0, 2), np.int32)})  # noqa: PLW2901
            out.append(sample)
        return out

    def _load(self, sample: Sample) -> Sample | EncodeError:
        try:
            return load(sample, self.media)
        except EncodeError as error:
            return error.named(record_id(sample))

    def _ready(self, sample: Mapping[str, Any]) -> Sample:
        """Leave out what no model takes, and give texts their positions."""
        if "loss_weights" in sample:  # said as feeds say it: no model takes them, and they must not go silently
            raise ConfigError(
                "column 'loss_weights' can't be collated", where="batch",
                fix="take it away (.map(lambda s: {}, remove_columns=['loss_weights'])), or give collate= a function",
            )  # fmt: skip
        out = {k: v for k, v in sample.items() if k not in _NOT_MODEL and (self.kinds or k != "mm_token_type_ids")}
        n = len(out["input_ids"])
        if not self.media.flat:
            out.setdefault("position_ids", text_positions(n))
        if self.kinds:
            out.setdefault("mm_token_type_ids", np.zeros(n, np.int64))
        return out

    def _with_dummy(self, rows: list[list[Sample]], kind: str, tokens: tuple[int, int, int]) -> list[list[Sample]]:
        """Put a dummy behind the last sample of the shortest row: no token sees it, none of it is trained."""
        before, place, after = tokens
        measured = self.media.measure(kind, _DUMMIES[kind])
        added = np.array([before, *[place] * measured.tokens, after], np.int32)
        shortest = min(range(len(rows)), key=lambda i: sum(len(s["input_ids"]) for s in rows[i]))
        last = dict(rows[shortest][-1])
        labels = last.pop("labels", None)
        spans = last.pop("loss_spans", None)
        n, ids = len(last["input_ids"]), last["input_ids"]
        if labels is None:
            labels = labels_of(ids, np.array([[0, n]]) if spans is None else spans)
        last["input_ids"] = np.concatenate([ids, added])
        last["labels"] = np.concatenate([labels, np.full(len(added), IGNORE_INDEX)])
        if not self.media.flat:
            so_far = last.get("position_ids", text_positions(n))
            rest = np.tile(np.arange(len(added)) + int(so_far.max(initial=-1)) + 1, (3, 1))
            last["position_ids"] = np.concatenate([so_far, rest], axis=1)
        kinds = np.array([0, *[TYPES[kind]] * measured.tokens, 0], np.int64)
        last["mm_token_type_ids"] = np.concatenate([last.get("mm_token_type_ids", np.zeros(n, np.int64)), kinds])
        last[REFERENCES[kind]] = [_DUMMIES[kind]]
        last |= {} if measured.grid is None else {GRIDS[kind]: np.array([measured.grid], np.int64)}
        last |= {} if measured.size is None else {SIZES: np.array([measured.size], np.int64)}
        out = [list(row) for row in rows]
        out[shortest][-1] = load(last, self.media)
        return [[_labelled(s) for s in row] for row in out]


def _even(samples: list[Sample]) -> list[Sample]:
    """Bring spectrograms of different lengths to the longest, with silence that no mask counts."""
    frames = [s["input_features"].shape[-1] for s in samples if "input_features" in s]
    if len(set(frames)) < 2:
        return samples
    out: list[Sample] = []
    for sample in samples:
        if "input_features" in sample:
            more = max(frames) - sample["input_features"].shape[-1]
            features = np.pad(sample["input_features"], ((0, 0), (0, 0), (0, more)))
            mask = np.pad(sample["feature_attention_mask"], ((0, 0), (0, more)))
            sample = {**sample, "input_features": features, "feature_attention_mask": mask}  # noqa: PLW2901
        out.append(sample)
    return out


def _labelled(sample: Sample) -> Sample:
    """Give labels in place of spans, so that all samples of the batch have the same form."""
    if "labels" in sample or "loss_spans" not in sample:
        return sample
    rest = {k: v for k, v in sample.items() if k != "loss_spans"}
    return {**rest, "labels": labels_of(sample["input_ids"], sample["loss_spans"])}


def _takes(sample: Mapping[str, Any], kind: str) -> bool:
    """Say whether a sample has something for the tower of a kind: pictures and clips have one together."""
    return any(column in sample for column in _COLUMNS[kind])
