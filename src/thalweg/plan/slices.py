"""Slices of rows for context-parallel ranks: which places of a batch each rank computes on.

Decides the places of three layouts. A slice always carries labels that were shifted before the cut and each token's
own position: after it, the neighbour that a label would be taken from is on another rank. Knows no communication.
"""

from dataclasses import replace
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from thalweg.core.errors import ConfigError, nearest
from thalweg.core.sample import IGNORE_INDEX
from thalweg.plan.labels import shift
from thalweg.plan.rows import RowArrays

Ints = NDArray[np.int64]
SliceLayout: TypeAlias = Literal["zigzag", "zigzag_row", "contiguous"]


def places(rows: RowArrays, rank: int, size: int, layout: SliceLayout = "zigzag") -> Ints:
    """Give the places of a rank's slice in each row.

    Args:
        rows: as `lay_out` gives them, not flat.
        rank: context-parallel rank, 0 <= rank < size.
        size: context-parallel ranks.
        layout: "zigzag": chunk `rank` and chunk 2 * size - 1 - rank of 2 * size equal chunks of every document, so
            that causal attention costs all ranks the same; documents are aligned to 2 * size places, and rows of one
            document are cut whole. "zigzag_row": the same with whole rows. "contiguous": chunk `rank` of `size`.

    Returns:
        int64 (B, L / size), rising in each row.

    Raises:
        ConfigError: segments or rows that the chunks do not divide.
    """
    known = get_args(SliceLayout)
    if layout not in known:
        raise ConfigError(f"unknown layout {layout!r} of context-parallel slices", fix=nearest(layout, known))
    if not 0 <= rank < size:
        raise ConfigError(f"cp_rank {rank} does not fit cp_size {size}")
    b, width = rows.input_ids.shape
    chunks = size if layout == "contiguous" else 2 * size
    edges = np.arange(b + 1) * width
    if layout == "zigzag" and rows.packed:
        edges = rows.cu_seqlens[np.append(True, np.diff(rows.cu_seqlens) > 0)].astype(np.int64)
    lengths = np.diff(edges)
    if (lengths % chunks).any():
        bad = int(np.flatnonzero(lengths % chunks)[0])
        by_document = layout == "zigzag" and rows.packed
        what = "segment" if by_document else "row"
        raise ConfigError(
            f"{what} {bad} has {lengths[bad]} places, and {chunks} chunks don't divide them",
            fix=f"pack with align={chunks} and a capacity that is a multiple of it"
            if by_document
            else f"choose a capacity that is a multiple of {chunks}",
        )
    each = lengths // chunks
    own = [rank] if layout == "contiguous" else [rank, chunks - 1 - rank]
    starts = (edges[:-1, None] + each[:, None] * np.array(own)).reshape(-1)
    sizes = np.repeat(each, len(own))
    flat = np.repeat(starts - np.cumsum(sizes) + sizes, sizes) + np.arange(int(sizes.sum()))
    out: Ints = flat.reshape(b, -1) - np.arange(b)[:, None] * width
    return out


def cut(rows: RowArrays, rank: int, size: int, layout: SliceLayout = "zigzag") -> RowArrays:
    """Give a rank's slice of rows, with labels shifted before the cut.

    `cu_seqlens` and `max_seqlen` stay those of the whole rows: attention runs over them on all ranks together.
    Slices of all ranks put together by `places` are the rows; their losses sum to that of the rows.

    Args:
        rows: as `lay_out` gives them, labels unshifted.
        rank: context-parallel rank.
        size: context-parallel ranks.
        layout: as `places` takes it.

    Raises:
        ConfigError: rows that the chunks do not divide, or a flat row whose end is not padded to them.
    """
    if rows.labels_shifted:
        raise ConfigError("these rows are a slice already", fix="cut the rows that lay_out gave")
    at = places(rows, rank, size, layout)

    def taken(values: NDArray[Any]) -> NDArray[Any]:
        wanted = at if values.ndim == 2 else np.broadcast_to(at, (*values.shape[:-2], *at.shape))
        return np.take_along_axis(values, wanted, axis=-1)

    labels = taken(shift(rows.labels))
    real = taken(rows.real_places())
    return replace(
        rows,
        input_ids=taken(rows.input_ids),
        labels=labels,
        position_ids=taken(rows.position_ids),
        num_tokens=int(np.count_nonzero(real)),
        num_label_tokens=int(np.count_nonzero(labels != IGNORE_INDEX)),
        labels_shifted=True,
        real=real,
        columns={k: taken(v) if np.shape(v) == rows.input_ids.shape else v for k, v in rows.columns.items()},
    )
