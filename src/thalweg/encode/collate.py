"""What each model family's `forward` takes: the names, shapes and label convention of a batch, as tables.

Decides, for each dialect, which keys a batch of rows gets and what stands under each. A packed batch for Hugging
Face models has no attention mask and switches the cache off: with either of them left as it is, documents of one
row see each other. Knows no tensor library: numpy in, numpy out.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from thalweg.core.errors import ConfigError
from thalweg.core.sample import IGNORE_INDEX
from thalweg.plan.labels import shift
from thalweg.plan.rows import RowArrays

Column: TypeAlias = Callable[[RowArrays], Any]
Columns: TypeAlias = Mapping[str, Column]


def attention_mask(rows: RowArrays) -> NDArray[Any]:
    """Give 1 on real places and 0 on padding, (B, L) of the type of the ids, from the lengths of the rows."""
    mask: NDArray[Any] = rows.real_places().astype(rows.input_ids.dtype)
    return mask


def _shifted(rows: RowArrays) -> NDArray[Any]:
    return rows.labels.copy() if rows.labels_shifted else shift(rows.labels)


def _loss_mask(rows: RowArrays) -> NDArray[np.float32]:
    mask: NDArray[np.bool_] = _shifted(rows) != IGNORE_INDEX
    return mask.astype(np.float32)


def _shifted_or_zero(rows: RowArrays) -> NDArray[Any]:
    labels = _shifted(rows)
    labels[labels == IGNORE_INDEX] = 0  # Megatron reads the loss mask, and wants a token of the vocabulary here
    return labels


def _ids(rows: RowArrays) -> Any:
    return rows.input_ids


def _labels(rows: RowArrays) -> Any:
    return rows.labels


def _positions(rows: RowArrays) -> Any:
    return rows.position_ids


def _media_positions(rows: RowArrays) -> Any:
    return rows.position_ids[1:] if rows.position_ids.ndim == 3 else rows.position_ids


HF_PACKED: Columns = {
    "input_ids": _ids,
    "labels": _labels,
    "position_ids": _positions,
    "cu_seq_lens_q": lambda rows: rows.cu_seqlens,
    "cu_seq_lens_k": lambda rows: rows.cu_seqlens.copy(),
    "max_length_q": lambda rows: rows.max_seqlen,
    "max_length_k": lambda rows: rows.max_seqlen,
    "use_cache": lambda _: False,
}
# State-space and linear-attention layers keep documents apart by segment numbers; other models may not take the key
HF_MAMBA: Columns = {**HF_PACKED, "seq_idx": lambda rows: rows.segment_ids}
# What kernels over sequences of any length take ("varlen", "thd"): no row axis, nothing that the device makes itself
VARLEN: Columns = {
    "input_ids": lambda rows: rows.input_ids[0],
    "cu_seqlens": lambda rows: rows.cu_seqlens,
    "max_seqlen": lambda rows: rows.max_seqlen,
}
HF_RIGHT: Columns = {"input_ids": _ids, "labels": _labels, "attention_mask": attention_mask}
HF_LEFT: Columns = {**HF_RIGHT, "position_ids": _positions}
MEGATRON_PADDED: Columns = {
    "tokens": _ids,
    "labels": _shifted_or_zero,
    "loss_mask": _loss_mask,
    "position_ids": _media_positions,
    "attention_mask": lambda _: None,
}
MEGATRON_PACKED: Columns = {
    **MEGATRON_PADDED,
    "cu_seqlens": lambda rows: rows.cu_seqlens[None],
    "max_seqlen": lambda rows: np.array([rows.max_seqlen], np.int32),
}
TORCHTITAN: Columns = {"input": _ids, "positions": _positions, "labels": _shifted}


@dataclass(frozen=True, slots=True)
class Dialect:
    """One family's convention. Called with rows, it gives the batch as a dict of fresh arrays and plain values.

    Args:
        name: the word of `batch(collate=...)`.
        tables: columns by kind of row: "packed", "right", "left".
        labels_shifted: labels stand on the token that predicts them.
        pair: key of the second part where a batch is (dict, labels); None: one dict.
        ids_alone: labels and positions are not taken, and need not be made.
    """

    name: str
    tables: Mapping[str, Columns]
    labels_shifted: bool
    pair: str | None = None
    ids_alone: bool = False

    def __call__(self, rows: RowArrays) -> dict[str, Any]:
        """Give the batch of these rows.

        Raises:
            ConfigError: the dialect has no form for this kind of padding.
        """
        kind = "packed" if rows.packed else rows.pad
        table = self.tables.get(kind)
        if table is None:
            raise ConfigError(f"collate={self.name!r} has no rows padded on the {kind}", fix='say pad="right"')
        batch = {name: column(rows) for name, column in table.items()}
        if rows.position_ids.ndim == 3 and not self.labels_shifted:
            batch["position_ids"] = rows.position_ids  # multimodal positions are given for padded rows too
        if rows.labels_shifted and not self.labels_shifted:
            batch["shift_labels"] = rows.labels  # models that shift inside take these as they are
            batch["position_ids"] = rows.position_ids  # the place in a slice says nothing of the place in its row
        batch.update(rows.columns)
        return batch

    def form(self, batch: dict[str, Any]) -> Any:
        """Give the batch in the form that the trainer takes: itself, or (batch without labels, labels)."""
        if self.pair is None:
            return batch
        return batch, batch.pop(self.pair)


DIALECTS: Mapping[str, Dialect] = {
    "hf": Dialect("hf", {"packed": HF_PACKED, "right": HF_RIGHT, "left": HF_LEFT}, labels_shifted=False),
    "hf_mamba": Dialect("hf_mamba", {"packed": HF_MAMBA, "right": HF_RIGHT, "left": HF_LEFT}, labels_shifted=False),
    "varlen": Dialect("varlen", {"packed": VARLEN}, labels_shifted=False, ids_alone=True),
    "megatron": Dialect("megatron", {"packed": MEGATRON_PACKED, "right": MEGATRON_PADDED}, labels_shifted=True),
    "torchtitan": Dialect(
        "torchtitan", {"packed": TORCHTITAN, "right": TORCHTITAN}, labels_shifted=True, pair="labels"
    ),
}
