"""Documents to the batch that a trainer takes, and what it is told beside it.

Decides padding, dialect and `batch.info` for one micro-batch of one rank. Knows no plan and no step but the numbers
that it is given.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from thalweg.core.batch import BatchInfo
from thalweg.core.errors import ConfigError, SampleError
from thalweg.core.sample import INPUT_IDS, LABELS, LOSS_SPANS, Ragged, Sample, offsets_of
from thalweg.encode.collate import DIALECTS
from thalweg.encode.collate_theirs import collate_by
from thalweg.feed import stages as st
from thalweg.feed.gather import MASK, PROVENANCE, Documents, Reader
from thalweg.feed.rowmap import map_rows
from thalweg.feed.slicing import Slicing
from thalweg.plan.rows import Pad, RowArrays, lay_out
from thalweg.store.records.hashing import mix

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
Names = Callable[[], tuple[list[list[str]], list[list[str]]]]


class LazyInfo(BatchInfo):
    """A `BatchInfo` whose ids and sources are looked up when they are first asked for: most steps never ask.

    Args:
        names: gives (ids, sources), each a list per row.
        labels_shifted: as in `BatchInfo`.

    `whole_label_tokens` counts those of the whole rows, where the batch is a slice of them.
    """

    __slots__ = ("_names", "whole_label_tokens")

    def __init__(self, names: Names, *, labels_shifted: bool) -> None:
        # not the parent's __init__: it would make lists and an array that are overwritten at once
        self.epoch = self.step = self.micro = self.num_tokens = self.num_label_tokens = self.whole_label_tokens = 0
        self.last, self.step_label_tokens, self.labels_shifted, self._names = True, None, labels_shifted, names
        self.straggler = None

    def __getattr__(self, name: str) -> Any:
        """Look both up, once."""
        if name not in {"ids", "sources"}:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        self.ids, self.sources = self._names()
        return getattr(self, name)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy as plain values."""
        return BatchInfo, tuple(getattr(self, f.name) for f in fields(BatchInfo))


class Collator:
    """Makes batches of documents.

    Args:
        batch: the batching stage; None gives rows one by one, as `batch(1)`.
        pack: the packing stage; None where a row is a sample.
        reader: names samples.
        lineage: of the data: pad_id.
        row_maps: functions on packed rows.
        slicing: the slice that this rank gets of each row; None: whole rows.
    """

    def __init__(
        self,
        batch: Any,
        pack: st.Pack | None,
        reader: Reader,
        lineage: Mapping[str, Any],
        row_maps: Sequence[st.Map] = (),
        *,
        slicing: Slicing | None = None,
    ) -> None:
        self.row_maps, self.slicing = list(row_maps), slicing
        self.stage = batch if batch is not None else st.Batch(1)
        self.pack, self.reader = pack, reader
        self.dialect = None if callable(self.stage.collate) else DIALECTS.get(self.stage.collate)
        given = self.stage.pad_id
        recorded = lineage.get("pad_id")
        self.dtype = np.dtype(self.stage.dtype)
        self.pad_id = int(given if given is not None else recorded if recorded is not None else 0)
        if pack is not None and self.stage.pad == "left":
            raise ConfigError("packed rows can't be padded on the left", where="batch", fix='pad="right" or pad="none"')
        self.multiple = self.stage.pad_to_multiple_of if slicing is None else slicing.multiple(self.stage, pack)

    @cached_property
    def labels_shifted(self) -> bool:
        """Say whether labels stand one to the left: the dialect's way, or a slice's."""
        return self.slicing is not None or (self.dialect is not None and self.dialect.labels_shifted)

    @cached_property
    def together(self) -> bool:
        """Say whether several batches may be laid out at once: a flat row each, or rows of one width, without gaps."""
        if self.dialect is None or self.row_maps or self.multiple != 1:
            return False
        pack = self.pack
        if pack is not None and (pack.align != 1 or pack.max_docs is not None or pack.overlong == "alone"):
            return False
        return self.stage.pad == "none" or pack is not None

    def segments(self, sizes: NDArray[np.int64], offsets: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Give the places of each segment of rows, padding too, where they are known from the table; else None.

        Args:
            sizes: int64 (n,), tokens of each document.
            offsets: int64 (r + 1,), documents of each row.
        """
        if not self.together or (self.dialect is not None and self.dialect.ids_alone):
            return None
        if self.stage.pad == "none":
            return sizes
        if self.pack is None or len(self.pack.capacities) > 1:
            return None
        assert self._asked_width is not None
        ends = offsets_of(sizes)[offsets]
        tail = self._asked_width - (ends[1:] - ends[:-1])
        return np.insert(sizes, offsets[1:], tail) if int(tail.min(initial=0)) >= 0 else None

    def arrays(self, documents: Documents, filler: int, width: int | None = None) -> RowArrays:
        """Lay documents out as rows, and `filler` empty ones behind them.

        Args:
            width: tokens of a row; None takes the stage's.
        """
        assert documents.tokens is not None
        offsets, made = documents.offsets, documents.positions
        if filler:
            offsets = np.append(offsets, np.full(filler, offsets[-1]))
        rows = lay_out(
            documents.tokens,
            offsets,
            spans=documents.spans,
            labels=documents.labels,
            packed=self.pack is not None,
            capacity=self.width(documents) if width is None else width,
            pad=cast("Pad", self.stage.pad),
            pad_id=self.pad_id,
            pad_to_multiple_of=self.multiple,
            align=1 if self.pack is None else self.pack.align,
            max_docs=None if self.pack is None else self.pack.max_docs,
            dtype=self.dtype,
            position_ids=made if made is not None and made.ndim == 2 and not filler else None,
        )
        if self.row_maps:
            map_rows(self.row_maps, rows)
        return rows

    def width(self, documents: Documents) -> int | None:
        """Give the width of rows, None where it is theirs: as asked, and more for a document alone in its row."""
        pack, top = self.pack, self._asked_width
        if top is None or pack is None or pack.overlong != "alone" or isinstance(self.stage.pad_to, int):
            return top
        assert documents.tokens is not None
        ends = offsets_of(-(-documents.tokens.lengths // pack.align) * pack.align)
        return max(top, int(np.diff(ends[documents.offsets]).max(initial=0)))

    @cached_property
    def _asked_width(self) -> int | None:
        """Width of rows as the stages say: pad_to, else the capacity where rows are packed and padded."""
        wanted = getattr(self.stage, "pad_to", None)
        if isinstance(wanted, int):
            return wanted
        return None if self.pack is None or self.stage.pad == "none" else self.pack.longest

    def collate(
        self, documents: Documents, filler: int, shape: tuple[int, int] | None = None, width: int | None = None
    ) -> tuple[dict[str, Any], LazyInfo]:
        """Make the batch of some documents, and `filler` rows of weight zero behind them.

        Args:
            documents: of the batch.
            filler: rows of weight zero.
            shape: (rows, width) of a batch of single samples; filled up with rows of weight zero.
            width: tokens of a packed row; None takes the stage's.

        Raises:
            ConfigError: samples without tokens under a token dialect, or a column that has no place in it.
        """
        if shape is not None:
            n = len(documents.index)
            documents, filler, width = replace(documents, offsets=np.arange(n + 1)), shape[0] - n, shape[1]
        info = LazyInfo(partial(self._names, documents, filler), labels_shifted=self.labels_shifted)
        if self.dialect is None:
            return self._by_function(documents, filler, info), info
        if documents.tokens is None:
            self._no_tokens(documents)
        self.refuse_labels(documents)
        rows = self.arrays(documents, filler, width)
        if self.stage.pad == "none" and filler and len(rows.weight) != documents.num_rows + filler:
            rows.weight = np.append(rows.weight, np.zeros(filler, np.float32))
        self._refuse_columns(documents)
        return self._dialect(rows, info), info

    def _dialect(self, rows: RowArrays, info: LazyInfo) -> dict[str, Any]:
        """Give rows, or this rank's slice of them, as the model takes them, and tell their counts."""
        assert self.dialect is not None
        info.whole_label_tokens = rows.num_label_tokens
        if self.slicing is not None:
            rows = self.slicing(rows)
        info.num_tokens, info.num_label_tokens, info.weight = rows.num_tokens, rows.num_label_tokens, rows.weight
        return self.dialect(rows)

    def dressed(self, rows: RowArrays, documents: Documents, a: int, b: int) -> tuple[dict[str, Any], LazyInfo]:
        """Make the batch of arrays that are laid out already: rows a to b of the documents."""
        info = LazyInfo(partial(self._names_of, documents, a, b), labels_shifted=self.labels_shifted)
        return self._dialect(rows, info), info

    def _names_of(self, documents: Documents, a: int, b: int) -> tuple[list[list[str]], list[list[str]]]:
        return self._names(documents.part(a, b), 0)

    def _no_tokens(self, documents: Documents) -> None:
        samples = documents.samples or []
        if any(s is not None for s in samples):
            there = next(s for s in samples if s is not None)
            raise ConfigError(
                f"samples have no column {INPUT_IDS!r}: they have {', '.join(there) or 'none'}", where="batch",
                fix='encode them (.map(TextEncoder(...))), or batch them as they are with collate="raw"',
            )  # fmt: skip
        n = len(documents.index)  # only holes: rows of padding
        documents.tokens = Ragged(np.empty(0, np.int32), np.zeros(n + 1, np.int64))

    def refuse_labels(self, documents: Documents) -> None:
        """Refuse what the batch would not tell, or could not hold.

        Raises:
            ConfigError: samples that mark their loss, under a dialect without labels.
            SampleError: a label beyond the type that was asked for.
        """
        labels = documents.labels
        if self.dialect is not None and self.dialect.ids_alone and (labels is not None or documents.spans is not None):
            raise ConfigError(
                f"collate={self.dialect.name!r} has no labels, and samples say which of their tokens are in the loss",
                where="batch", fix='collate="hf", or leave labels and loss_spans out where all tokens count',
            )  # fmt: skip
        if labels is not None and self.dtype.itemsize < 8 and len(labels.values):
            low, high = int(labels.values.min()), int(labels.values.max())
            if not np.iinfo(self.dtype).min <= low <= high <= np.iinfo(self.dtype).max:
                raise SampleError(f"label {high if high > 0 else low} does not fit {self.dtype.name}", where="batch")

    def _refuse_columns(self, documents: Documents) -> None:
        there = next((s for s in documents.samples or [] if s is not None), None)
        for name in there or ():
            if name not in {INPUT_IDS, LABELS, LOSS_SPANS, MASK, *PROVENANCE}:
                raise ConfigError(
                    f"column {name!r} can't be collated", where="batch",
                    fix=f"take it away where it was last used (remove_columns=[{name!r}]), or give collate= a function",
                )  # fmt: skip

    def _by_function(self, documents: Documents, filler: int, info: LazyInfo) -> dict[str, Any]:
        samples = self.row_samples(documents)
        n = documents.num_rows
        info.weight = np.append(np.ones(n, np.float32), np.zeros(filler, np.float32))
        if documents.tokens is not None:
            info.num_tokens = len(documents.tokens.values)
            info.num_label_tokens = info.whole_label_tokens = _count_labels(documents)
        if self.stage.collate == "raw":
            return {"samples": samples}
        if not samples:
            raise ConfigError(
                "a batch of filler alone can't be made by a collate function", where="batch", fix='tail="drop"'
            )
        while len(samples) < n + filler:  # a function can't make filler: the first sample again, with weight zero
            samples.append(samples[0])
        return collate_by(self.stage.collate, samples)

    def row_samples(self, documents: Documents) -> list[Sample]:
        """Give each row as a dict of its arrays, or each sample as it is where nothing is packed."""
        if self.pack is None:
            return self.reader.samples(documents)
        if getattr(self.stage.collate, "packed", False) and documents.samples is not None:
            there = documents.samples  # the function lays rows out itself: each row as the list of its samples
            rows_of: list[Any] = [
                [s for s in there[a:b] if s is not None] for a, b in pairwise(documents.offsets.tolist())
            ]
            return rows_of
        rows = self.arrays(documents, 0, width=None)
        lengths = rows.lengths.tolist()
        return [
            {
                INPUT_IDS: rows.input_ids[i, :n],
                LABELS: rows.labels[i, :n],
                "position_ids": rows.position_ids[..., i, :n],
            }
            for i, n in enumerate(lengths)
        ]

    def _names(self, documents: Documents, filler: int) -> tuple[list[list[str]], list[list[str]]]:
        flat, names = [""] * len(documents.index), [""] * len(documents.index)
        for s, leaf in enumerate(self.reader.leaves):
            mine = np.flatnonzero(documents.source == s)
            if len(mine):
                for at, name in zip(mine.tolist(), leaf.source.ids(documents.index[mine]), strict=True):
                    flat[at], names[at] = name, leaf.name
        bounds = list(pairwise(documents.offsets.tolist()))
        empty: list[list[str]] = [[] for _ in range(filler)]
        return [flat[a:b] for a, b in bounds] + empty, [names[a:b] for a, b in bounds] + empty


def _count_labels(documents: Documents) -> int:
    assert documents.tokens is not None
    lengths = documents.tokens.lengths
    if documents.labels is not None:
        values = documents.labels.values
        counted = int(np.count_nonzero(values != -100))
        first = documents.labels.offsets[:-1][lengths > 0]
        return counted - int(np.count_nonzero(values[first] != -100))
    if documents.spans is not None:
        pairs = np.maximum(documents.spans.values.reshape(-1, 2), 1)
        return int((pairs[:, 1] - pairs[:, 0]).sum())
    return int(np.maximum(lengths - 1, 0).sum())


def row_digests(hashes: NDArray[np.uint64], offsets: Sequence[int] | NDArray[np.int64]) -> NDArray[np.uint64]:
    """Hash the ids of each row to one number: the order of its documents matters.

    Args:
        hashes: uint64 (n,), of the ids as read with the data.
        offsets: int64 (r + 1,).

    Returns:
        uint64 (r,); 0 for a row without a document.
    """
    bounds = np.asarray(offsets, np.int64)
    if len(bounds) == len(hashes) + 1 and (bounds[1:] - bounds[:-1] == 1).all():
        return mix(hashes + GOLDEN)
    place = np.arange(len(hashes), dtype=np.uint64)
    place -= np.repeat(bounds[:-1] - bounds[0], np.diff(bounds)).astype(np.uint64)
    total = np.zeros(len(hashes) + 1, np.uint64)
    np.cumsum(mix(hashes + (place + np.uint64(1)) * GOLDEN), out=total[1:])
    sums: NDArray[np.uint64] = total[bounds[1:] - bounds[0]] - total[bounds[:-1] - bounds[0]]
    return sums
