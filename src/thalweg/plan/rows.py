"""The arrays of a batch of rows: tokens, labels, positions and segment borders, from documents and loss spans.

Decides where each token stands: documents end to end in their row, padding as one segment of its own at the row's
end (or start), positions that restart with each segment. Masks come from places, never from token values: a real
token may equal the padding token. Knows no model's names for these arrays (`encode.collate` does).
"""

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from thalweg.core.errors import ConfigError, InputError, SampleError
from thalweg.core.sample import IGNORE_INDEX, Ragged, offsets_of
from thalweg.plan.labels import loss_mask, span_bounds

Ints = NDArray[np.int64]
Pad: TypeAlias = Literal["right", "left", "none"]


@dataclass(slots=True, eq=False)
class RowArrays:
    """One micro-batch of rows. With pad "none" all rows stand end to end in one flat row and B is 1.

    Args:
        input_ids: int (B, L).
        labels: int (B, L), unshifted, -100 off the loss, on padding and on the first token of each document.
        position_ids: int (B, L), from 0 in each segment; (4, B, L) with multimodal positions, text first.
        cu_seqlens: int32 (k + 1,), borders of all segments of the B * L places; a padding tail is a segment.
        max_seqlen: longest segment.
        lengths: int64 (B,), places of each row before its padding.
        weight: float32, one for each row asked for; 0 on a row without a token.
        num_tokens: real tokens.
        num_label_tokens: tokens in the loss, the same number under either label convention.
        packed: True where segments must be kept apart; False for rows of one document and padding.
        pad: side of the padding.
        row_tokens: int64, real tokens of each row asked for.
        max_docs: documents of a row at most, where `cu_seqlens` has a fixed length.
        labels_shifted: labels stand one to the left already, as in context-parallel slices.
        real: bool (B, L), places that hold a token, where `lengths` do not say it: aligned documents, slices.
        columns: further columns, token-aligned ones as (B, L), in the model's names.
    """

    input_ids: NDArray[Any]
    labels: NDArray[Any]
    position_ids: NDArray[Any]
    cu_seqlens: NDArray[np.int32]
    max_seqlen: int
    lengths: Ints
    weight: NDArray[np.float32]
    num_tokens: int
    num_label_tokens: int
    packed: bool
    pad: Pad
    row_tokens: Ints
    max_docs: int | None = None
    labels_shifted: bool = False
    real: NDArray[np.bool_] | None = None
    columns: dict[str, Any] = field(default_factory=dict[str, Any])

    def real_places(self) -> NDArray[np.bool_]:
        """Say which places hold a token, bool (B, L); gaps of alignment and padding do not."""
        if self.real is not None:
            return self.real
        width = self.input_ids.shape[1]
        at, lengths = np.arange(width), self.lengths[:, None]
        real: NDArray[np.bool_] = at >= width - lengths if self.pad == "left" else at < lengths
        return real

    @property
    def segment_ids(self) -> NDArray[np.int32]:
        """Number of each place's segment in its row from 0, int32 (B, L)."""
        rows, width = self.input_ids.shape
        sizes = np.diff(self.cu_seqlens)
        row = self.cu_seqlens[:-1][sizes > 0] // max(width, 1)
        number = np.arange(len(row)) - np.searchsorted(row, row)
        return np.repeat(number.astype(np.int32), sizes[sizes > 0]).reshape(rows, width)

    def split(self, rows: int) -> "list[RowArrays]":
        """Give consecutive micro-batches of `rows` rows as views; the last may have fewer.

        Laying out many rows in one call and splitting them costs a fraction of a call for each micro-batch.

        Raises:
            ConfigError: the rows stand in one flat row.
        """
        b, width = self.input_ids.shape
        if self.pad == "none":
            raise ConfigError("a flat row can't be split", fix="lay out each micro-batch by itself")
        in_loss = np.count_nonzero(self.labels != IGNORE_INDEX, axis=1)
        edges = np.searchsorted(self.cu_seqlens, np.minimum(np.arange(0, b + rows, rows), b) * width)
        out: list[RowArrays] = []
        for i, start in enumerate(range(0, b, rows)):
            part = slice(start, start + rows)
            cu = self.cu_seqlens[edges[i] : edges[i + 1] + 1] - np.int32(start * width)
            ids = self.input_ids[part]
            out.append(
                RowArrays(
                    input_ids=ids,
                    labels=self.labels[part],
                    position_ids=self.position_ids[..., part, :],
                    cu_seqlens=cu if self.max_docs is None else _padded(cu, len(ids), self.max_docs),
                    max_seqlen=int(np.diff(cu).max(initial=0)),
                    lengths=self.lengths[part],
                    weight=self.weight[part],
                    num_tokens=int(self.row_tokens[part].sum()),
                    num_label_tokens=int(in_loss[part].sum()),
                    packed=self.packed,
                    pad=self.pad,
                    row_tokens=self.row_tokens[part],
                    max_docs=self.max_docs,
                    real=None if self.real is None else self.real[part],
                    columns={k: v[part] for k, v in self.columns.items()},
                )
            )
        return out


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Where documents stand in a batch of rows.

    Args:
        shape: (B, L).
        starts: int64 (n,), place of each document's first token among the B * L.
        sizes: int64 (n,), tokens of each document.
        segments: int64 (k,), places of each segment in order, padding included; sums to B * L.
        rows: (first token among all documents' tokens, number of tokens, first place) of each row.
        dense: documents of a row stand without gaps (no alignment).
        lengths: int64 (B,), places of each row before its padding.
    """

    shape: tuple[int, int]
    starts: Ints
    sizes: Ints
    segments: Ints
    rows: list[tuple[int, int, int]]
    dense: bool
    lengths: Ints

    @classmethod
    def plan(
        cls,
        offsets: Ints,
        row_offsets: Ints,
        *,
        pad: Pad = "right",
        width: int | None = None,
        multiple: int = 1,
        align: int = 1,
    ) -> "Layout":
        """Decide the place of every document.

        Args:
            offsets: int64 (n + 1,), borders of the documents; an empty one takes no place and no segment.
            row_offsets: int64 (B + 1,), documents of each row.
            pad: side of the padding; "none": one flat row.
            width: tokens of a row; None: those of the longest row.
            multiple: rows are as wide as a multiple of this.
            align: each document takes up a multiple of this many places.

        Raises:
            InputError: a row is longer than `width`.
        """
        sizes = offsets[1:] - offsets[:-1]
        taken, ends = sizes, offsets
        if align != 1:
            taken = -(-sizes // align) * align
            ends = offsets_of(taken)
        if pad == "none":
            row_offsets, width = row_offsets[[0, -1]], None
        edges = ends[row_offsets]
        lengths = edges[1:] - edges[:-1]
        longest = int(lengths.max(initial=0))
        if width is not None and longest > width:
            bad = int(lengths.argmax())
            raise InputError(f"row {bad} has {longest} tokens and rows take {width}", fix="pack to true token counts")
        full = -(-max(longest if width is None else width, 1) // multiple) * multiple
        b, number = len(lengths), np.arange(len(lengths))
        row = number.repeat(row_offsets[1:] - row_offsets[:-1])  # of each document
        tail = full - lengths
        first = number * full  # first place of each row's documents
        segments = np.empty(len(sizes) + b, np.int64)
        if pad == "left":
            first += tail
            segments[row_offsets[:-1] + number] = tail
            segments[np.arange(1, len(sizes) + 1) + row] = taken
        else:
            segments[row_offsets[1:] + number] = tail
            segments[np.arange(len(sizes)) + row] = taken
        base = offsets[row_offsets]
        rows = list(zip(base[:-1].tolist(), (base[1:] - base[:-1]).tolist(), first.tolist(), strict=True))
        starts = ends[:-1] + (first - edges[:-1])[row]
        return cls((b, full), starts, sizes, segments[segments > 0], rows, align == 1, lengths)

    def place(self, values: NDArray[Any], fill: Any, dtype: DTypeLike = np.int64) -> NDArray[Any]:
        """Put token-aligned values in their places; `fill` elsewhere.

        Args:
            values: (T,), those of all documents end to end.
            fill: value on padding.
            dtype: of the result.

        Returns:
            (B, L), a fresh array.
        """
        flat = np.empty(self.shape[0] * self.shape[1], dtype)
        if not self.dense:
            flat.fill(fill)
            before = self.sizes.cumsum() - self.sizes
            flat[(self.starts - before).repeat(self.sizes) + np.arange(len(values))] = values
            return flat.reshape(self.shape)
        end = 0
        for base, count, first in self.rows:
            flat[end:first] = fill
            end = first + count
            flat[first:end] = values[base : base + count]
        flat[end:] = fill
        return flat.reshape(self.shape)

    def blank(self, flat: NDArray[Any], fill: Any) -> None:
        """Write `fill` on the padding at the rows' ends of dense rows; flat: (B * L,)."""
        end = 0
        for _, count, first in self.rows:
            flat[end:first] = fill
            end = first + count
        flat[end:] = fill


def lay_out(
    tokens: Ragged,
    row_offsets: NDArray[np.integer],
    *,
    spans: Ragged | None = None,
    labels: Ragged | None = None,
    packed: bool = True,
    capacity: int | None = None,
    pad: Pad = "right",
    pad_id: int = 0,
    pad_to_multiple_of: int = 1,
    align: int = 1,
    max_docs: int | None = None,
    rope: Ragged | None = None,
    aligned: dict[str, Ragged] | None = None,
    dtype: DTypeLike = np.int64,
    position_ids: NDArray[Any] | None = None,
) -> RowArrays:
    """Lay documents out as rows, in one vectorised pass.

    Args:
        tokens: int (n_i,) of each document, in row order. An empty one (a sample that failed) takes no place.
        row_offsets: int (B + 1,), row b holds documents row_offsets[b] to row_offsets[b + 1].
        spans: int (k, 2) of each document, tokens in the loss; None with labels None: all tokens.
        labels: int (n_i,) of each document, unshifted, instead of spans.
        packed: rows of several documents that must not see each other; False: one document a row at most.
        capacity: tokens of a row; None: those of the longest row.
        pad: "right", "left" (packed rows can't), or "none": one flat row without padding.
        pad_id: token on padding.
        pad_to_multiple_of: rows are as wide as a multiple of this.
        align: each document takes up a multiple of this many places, the rest of it padding inside its segment.
        max_docs: documents of a row at most; `cu_seqlens` then has the fixed length B * (max_docs + 1) + 1.
        rope: int (n_i, 3) of each document: multimodal positions (time, height, width).
        aligned: further token-aligned columns, 0 on padding.
        dtype: of tokens, labels and positions.
        position_ids: (B, L), where they are made already.

    Raises:
        InputError: a row above the capacity or with more than max_docs documents.
        SampleError: a span that does not fit its document.
        ConfigError: left padding of packed rows, or an unpacked row of several documents.
    """
    offsets = np.asarray(row_offsets, np.int64)
    if packed and pad == "left":
        raise ConfigError("packed rows can't be padded on the left", fix='say pad="right" or pad="none"')
    if not packed and len(offsets) > 1 and np.diff(offsets).max() > 1:
        raise ConfigError("an unpacked row holds one document at most", fix="lay out with packed=True")
    layout = Layout.plan(tokens.offsets, offsets, pad=pad, width=capacity, multiple=pad_to_multiple_of, align=align)
    cu = np.zeros(len(layout.segments) + 1, np.int32)
    layout.segments.cumsum(out=cu[1:])
    if position_ids is None:
        position_ids = positions(layout.segments, dtype).reshape(layout.shape)
    if rope is not None:
        three = [layout.place(rope.values[:, i], 0, dtype) for i in range(3)]
        position_ids = np.stack([position_ids, *(_restart_padding(r, position_ids, layout) for r in three)])
    ids = layout.place(tokens.values, pad_id, dtype)
    targets, counted = _labels(ids, layout, spans, labels)
    edges = tokens.offsets[offsets]
    return RowArrays(
        input_ids=ids,
        labels=targets,
        position_ids=position_ids,
        cu_seqlens=cu if max_docs is None else _fixed(cu, offsets, layout.sizes, max_docs),
        max_seqlen=int(layout.segments.max(initial=0)),
        lengths=layout.lengths,
        weight=(edges[1:] > edges[:-1]).astype(np.float32),
        num_tokens=len(tokens.values),
        num_label_tokens=counted,
        packed=packed or pad == "none",
        pad=pad,
        row_tokens=edges[1:] - edges[:-1],
        max_docs=max_docs,
        real=None if layout.dense else layout.place(np.ones(len(tokens.values), np.bool_), False, np.bool_),
        columns={k: layout.place(v.values, 0, v.values.dtype) for k, v in (aligned or {}).items()},
    )


_counting: dict[Any, NDArray[Any]] = {}  # positions from 0 by type, copied from for every document


def positions(lengths: Ints, dtype: DTypeLike = np.int64) -> NDArray[Any]:
    """Give 0, 1, ... anew for each length, (sum of lengths,): slices of one template joined, 0.6 ns a token."""
    kind = np.dtype(dtype)
    data = memoryview(counting(int(lengths.max(initial=0)), kind).data).cast("B")
    return np.frombuffer(bytearray().join([data[:n] for n in (lengths * kind.itemsize).tolist()]), kind)


def counting(longest: int, dtype: DTypeLike) -> NDArray[Any]:
    """Give 0, 1, ... up to at least `longest`: one array for all who ask, to be copied from."""
    kind = np.dtype(dtype)
    template = _counting.get(kind)
    if template is None or longest > len(template):
        template = _counting[kind] = np.arange(max(longest, 8192), dtype=kind)  # any thread may grow it
    return template


def _labels(ids: NDArray[Any], layout: Layout, spans: Ragged | None, labels: Ragged | None) -> tuple[NDArray[Any], int]:
    """Give labels (B, L) and the number of tokens in the loss."""
    ignore = ids.dtype.type(IGNORE_INDEX)
    real = layout.sizes > 0
    if labels is not None:
        if not np.array_equal(labels.lengths, layout.sizes):
            bad = int(np.flatnonzero(labels.lengths != layout.sizes)[0])
            raise SampleError(
                f"document {bad} of the batch has {layout.sizes[bad]} tokens and {labels.lengths[bad]} labels",
                fix="give every token a label, -100 where it is not in the loss",
            )
        out = layout.place(labels.values, IGNORE_INDEX, ids.dtype)
        out.reshape(-1)[layout.starts[real]] = IGNORE_INDEX
        return out, int(np.count_nonzero(out != IGNORE_INDEX))
    if spans is not None:
        bounds = span_bounds(spans, layout.sizes, layout.starts)
        mask = loss_mask(bounds, ids.size).reshape(ids.shape)
        return np.where(mask, ids, ignore), int((bounds[1::2] - bounds[::2]).sum())
    if layout.dense:
        out = ids.copy()
        flat = out.reshape(-1)
        layout.blank(flat, ignore)
        flat[layout.starts[real]] = ignore
        return out, int((layout.sizes[real] - 1).sum())
    pairs = np.stack([layout.starts[real] + 1, (layout.starts + layout.sizes)[real]], axis=1)
    mask = loss_mask(pairs.reshape(-1), ids.size).reshape(ids.shape)
    return np.where(mask, ids, ignore), int((layout.sizes[real] - 1).sum())


def _restart_padding(rope: NDArray[Any], text: NDArray[Any], layout: Layout) -> NDArray[Any]:
    """Give multimodal positions that run on padding as the text positions do."""
    real = layout.place(np.ones(int(layout.sizes.sum()), np.bool_), False, np.bool_)
    return np.where(real, rope, text)


def _fixed(cu: NDArray[np.int32], offsets: Ints, sizes: Ints, max_docs: int) -> NDArray[np.int32]:
    """Give borders padded to a fixed number of entries by repeating the last."""
    real = offsets_of(sizes > 0)
    most = int(np.diff(real[offsets]).max(initial=0))
    if most > max_docs:
        raise InputError(f"a row holds {most} documents and max_docs is {max_docs}", fix="pack with the same max_docs")
    return _padded(cu, len(offsets) - 1, max_docs)


def _padded(cu: NDArray[np.int32], rows: int, max_docs: int) -> NDArray[np.int32]:
    out = np.full(rows * (max_docs + 1) + 1, cu[-1], np.int32)
    out[: len(cu)] = cu
    return out
