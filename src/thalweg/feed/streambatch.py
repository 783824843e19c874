"""Rows of a stream to the batch that a trainer takes.

Decides how pieces of samples become documents; what a batch looks like is `feed.batch`. Knows no order and no step.
"""

from collections.abc import Sequence
from itertools import islice
from time import perf_counter
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from thalweg.core.batch import Batch
from thalweg.core.errors import ConfigError, SampleError
from thalweg.core.sample import IGNORE_INDEX, INPUT_IDS, LABELS, LOSS_SPANS, Ragged, Sample, offsets_of
from thalweg.feed import stages as st
from thalweg.feed.batch import Collator, row_digests
from thalweg.feed.gather import Documents, Reader
from thalweg.feed.ledgerstream import Key
from thalweg.feed.slicing import Slicing
from thalweg.feed.source import hash_ids
from thalweg.feed.streampack import Piece
from thalweg.feed.streamsteps import StepRows

Row = list[Piece]
Noted = tuple[Sequence[Key], NDArray[np.uint64]]  # what a ledger is told of a micro-batch
NOTHING_NOTED: Noted = ((), np.empty(0, np.uint64))


class _Samples:
    """Stands where a planned feed has its reader: a stream's samples are in its documents already."""

    leaves: Sequence[Any] = ()

    def samples(self, documents: Documents) -> list[Sample]:
        """Give the documents as dicts."""
        return [s for s in documents.samples or [] if s is not None]


class StreamBatcher:
    """Makes batches of rows.

    Args:
        batch: the batching stage; None gives rows one by one.
        pack: the packing stage; None where a row is a sample.
        row_maps: functions on packed rows.
        slicing: the slice that this rank gets of each row; None: whole rows.
    """

    def __init__(
        self,
        batch: st.Batch | None,
        pack: st.Pack | None,
        row_maps: Sequence[st.Map] = (),
        slicing: Slicing | None = None,
    ) -> None:
        self.stage = batch if batch is not None else st.Batch(1)
        self._pack = pack
        self._collator = Collator(self.stage, pack, cast("Reader", _Samples()), {}, row_maps, slicing=slicing)
        self._template: list[Row] | None = None
        self.seconds = 0.0  # in which batches were laid out

    def batch(self, rows: Sequence[Row], filler: int) -> Batch:
        """Make one micro-batch of rows, with `filler` rows of weight zero behind them."""
        start = perf_counter()
        documents = documents_of(rows)
        if rows and self._template is None:
            self._template = [rows[0]]
        if not rows and not callable(self.stage.collate) and self.stage.collate != "raw" and documents.tokens is None:
            documents.tokens = Ragged(np.empty(0, np.int32), np.zeros(1, np.int64))
        values, info = self._collator.collate(documents, filler)
        info.ids = [[str(p.id) for p in row] for row in rows] + [[] for _ in range(filler)]
        info.sources = [[p.source.name for p in row] for row in rows] + [[] for _ in range(filler)]
        self.seconds += perf_counter() - start
        return Batch(values, info=info)

    def row(self, row: Row) -> Sample | None:
        """Lay one row out as a dict of arrays."""
        return self._collator.row_samples(documents_of([row]))[0]

    def zero(self) -> Batch:
        """Make a batch of weight zero for a rank whose stream has ended (`until="all"`).

        Raises:
            ConfigError: a collate function can't make rows of nothing, and no row was seen to stand in.
        """
        size = self.stage.sizes[0]  # one number: a ramp is refused on a stream
        if callable(self.stage.collate) or self.stage.collate == "raw":
            if self._template is None:
                raise ConfigError(
                    "this rank has no row to stand in for the others", where="until='all'", fix="say until='first'"
                )
            made = self.batch(self._template * size, 0)
            made.info.weight = np.zeros(size, np.float32)
            made.info.num_tokens = made.info.num_label_tokens = 0
            return made
        return self.batch([], size)


class LaidOut:
    """Rows of a step -> its micro-batches; in the worker that lays out ahead."""

    def __init__(self, batcher: StreamBatcher, noted: bool) -> None:
        self._batcher, self._noted = batcher, noted

    def __call__(self, step: StepRows) -> list[tuple[StepRows, list[Batch], list[Noted]]]:
        """Lay out one step, and digest the ids in it where a ledger asks."""
        made = [self._batcher.batch(rows, fill) for rows, fill in zip(step.micros, step.fillers, strict=True)]
        keys = iter(step.keys)
        noted: list[Noted] = [(list(islice(keys, len(m))), digests_of(m)) for m in step.micros] if self._noted else []
        return [(step, made, noted)]


def step_words(step: StepRows) -> str:
    """Name a step for an error."""
    return f"a step of epoch {step.epoch}"


def digests_of(rows: Sequence[Row]) -> NDArray[np.uint64]:
    """Hash the ids and sources in each row, as they came with the data, to one number: uint64 (r,)."""
    pieces = [p for row in rows for p in row]
    offsets = offsets_of([len(row) for row in rows])
    return row_digests(hash_ids([f"{p.source.name}/{p.id}" if p.source.name else str(p.id) for p in pieces]), offsets)


def documents_of(rows: Sequence[Row]) -> Documents:
    """Lay the pieces of rows end to end as documents.

    Raises:
        SampleError: labels that are not one for each token.
    """
    pieces = [p for row in rows for p in row]
    offsets = offsets_of([len(row) for row in rows])
    n = len(pieces)
    documents = Documents(np.zeros(n, np.int32), np.zeros(n, np.int64), offsets)
    documents.samples = [p.sample for p in pieces]
    if pieces and all(INPUT_IDS in p.sample for p in pieces):
        documents.tokens = Ragged.from_rows([p.sample[INPUT_IDS][p.start : p.stop] for p in pieces], np.int32)
        if any(LABELS in p.sample for p in pieces):
            documents.labels = Ragged.from_rows([_labels(p) for p in pieces], np.int64)
        elif any(LOSS_SPANS in p.sample for p in pieces):
            documents.spans = Ragged.from_rows([_spans(p) for p in pieces], np.int32)
    return documents


def _labels(piece: Piece) -> Any:
    sample = piece.sample
    n = len(sample[INPUT_IDS])
    if LABELS in sample:
        if len(sample[LABELS]) != n:
            raise SampleError(
                f"sample {str(piece.id)!r} has {n} input_ids and {len(sample[LABELS])} labels",
                fix="labels are unshifted: one for each token, -100 off the loss",
            )
        return sample[LABELS][piece.start : piece.stop]
    labels = np.asarray(sample[INPUT_IDS], np.int64)
    if LOSS_SPANS in sample:
        kept = np.full(n, IGNORE_INDEX, np.int64)
        for a, b in np.asarray(sample[LOSS_SPANS], np.int64).reshape(-1, 2).tolist():
            kept[a:b] = labels[a:b]
        labels = kept
    return labels[piece.start : piece.stop]


def _spans(piece: Piece) -> Any:
    sample, a, b = piece.sample, piece.start, piece.stop
    if LOSS_SPANS not in sample:
        return np.array([[0, b - a]], np.int32)
    spans = np.clip(np.asarray(sample[LOSS_SPANS], np.int64).reshape(-1, 2), a, b) - a
    return spans[spans[:, 1] > spans[:, 0]].astype(np.int32)
