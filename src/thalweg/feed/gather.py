"""Reads the documents of some rows, from one source or several, cut to their pieces and in the order of the plan.

Decides which columns are read and how a sample that failed keeps its place: as a document without tokens. Knows no
batch size, rank or padding.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.core.errors import ConfigError, SampleError
from thalweg.core.sample import INPUT_IDS, LABELS, LOSS_SPANS, Ragged, Sample, offsets_of
from thalweg.core.seeds import key64
from thalweg.feed.announce import say_of
from thalweg.feed.mapped import Leaf
from thalweg.feed.mapread import MapRows, Request, Result
from thalweg.feed.source import Columns, samples_of
from thalweg.feed.tokencopy import TokenCopy
from thalweg.feed.views import merge, places_of
from thalweg.plan.epoch import Block
from thalweg.plan.labels import cut_spans, labels_from_spans
from thalweg.store.records.token_ids import Places

Ints = NDArray[np.int64]
Segments = Callable[[Ints, Ints], Ints | None]  # sizes of documents and documents of each row -> places of segments
PROVENANCE = ("id", "source", "unit", "row")  # columns of records that say where a sample came from
MASK = "attention_mask"  # made anew from places; a sample's own may say no more than that all tokens are real


@dataclass(eq=False)
class Documents:
    """Documents of consecutive rows.

    Args:
        source: int32 (n,), leaf of each.
        index: int64 (n,), index in the leaf.
        offsets: int64 (r + 1,), documents of each row.
        start: int64 (n,) or None, first token of each piece.
        stop: int64 (n,) or None, end of each piece.
        tokens: their tokens; None where samples are not tokens.
        spans: tokens in the loss; None where `labels` are given or all tokens count.
        labels: unshifted labels.
        columns: further columns of every document.
        samples: the samples themselves, on the way by functions; None for a hole.
        own: the memory of `tokens` is nobody else's, and may be handed over.
        copy: what copies their tokens, made ready by `Reader.find`.
        positions: places in their segments, where they are copied with the tokens: (T,) of flat rows, (r, L) of rows
            of one width.
        seconds: that reading them took.
    """

    source: NDArray[np.int32]
    index: Ints
    offsets: Ints
    start: Ints | None = None
    stop: Ints | None = None
    tokens: Ragged | None = None
    spans: Ragged | None = None
    labels: Ragged | None = None
    columns: dict[str, Any] = field(default_factory=dict[str, Any])
    samples: list[Sample | None] | None = None
    epoch: Ints | int = 0
    own: bool = False
    copy: TokenCopy | None = None
    positions: NDArray[Any] | None = None
    seconds: float = 0.0

    @property
    def num_rows(self) -> int:
        """Count the rows."""
        return len(self.offsets) - 1

    @property
    def num_tokens(self) -> int:
        """Count the tokens that were read."""
        return 0 if self.tokens is None else len(self.tokens.values)

    def part(self, a: int, b: int) -> "Documents":
        """Give rows a to b as views."""
        if a == 0 and b == self.num_rows:
            return self
        lo, hi = int(self.offsets[a]), int(self.offsets[b])
        return Documents(
            self.source[lo:hi],
            self.index[lo:hi],
            self.offsets[a : b + 1] - lo,
            tokens=slice_ragged(self.tokens, lo, hi),
            spans=slice_ragged(self.spans, lo, hi),
            labels=slice_ragged(self.labels, lo, hi),
            samples=None if self.samples is None else self.samples[lo:hi],
            own=self.own,
            positions=self._positions(a, b),
        )

    def _positions(self, a: int, b: int) -> NDArray[Any] | None:
        if self.positions is None or self.positions.ndim == 2:
            return None if self.positions is None else self.positions[a:b]
        assert self.tokens is not None
        return self.positions[self.tokens.offsets[self.offsets[a]] : self.tokens.offsets[self.offsets[b]]]


def _must_be_ones(leaf: Leaf) -> None:
    """Refuse samples that were padded before they came here: up to 64, spread over the source, are looked at."""
    at = np.unique(np.linspace(0, len(leaf.source) - 1, 64).astype(np.int64))
    for index, mask in zip(at.tolist(), leaf.source.read(at, [MASK])[MASK], strict=True):
        if not np.all(np.asarray(mask)):
            raise ConfigError(
                f"sample {index} of {leaf.title} is padded: its {MASK} has zeros", where="batch",
                fix="tokenise without padding; batch pads to what the batch needs",
            )  # fmt: skip


def request_of(documents: Documents) -> Request:
    """Say which samples documents need."""
    epoch = np.broadcast_to(np.asarray(documents.epoch), documents.index.shape)
    return Request(documents.source, documents.index, epoch)


def slice_ragged(rows: Ragged | None, lo: int, hi: int) -> Ragged | None:
    """Give rows lo to hi as views of the same values."""
    if rows is None:
        return None
    offsets = rows.offsets[lo : hi + 1]
    return Ragged(rows.values[offsets[0] : offsets[-1]], offsets - offsets[0])


def select(parts: Sequence[tuple[Block, int, int]]) -> Documents:
    """Give the documents of rows a to b of each block, end to end; nothing is read."""
    if len(parts) == 1:
        block, a, b = parts[0]
        lo, hi = int(block.offsets[a]), int(block.offsets[b])
        start = None if block.start is None else block.start[lo:hi]
        stop = None if block.stop is None else block.stop[lo:hi]
        offsets = block.offsets[a : b + 1] - lo
        return Documents(block.source[lo:hi], block.index[lo:hi], offsets, start, stop, epoch=block.epoch)
    if not parts:
        return Documents(np.empty(0, np.int32), np.empty(0, np.int64), np.zeros(1, np.int64))
    ranges = [(block, int(block.offsets[a]), int(block.offsets[b]), a, b) for block, a, b in parts]
    bounds, base = [np.zeros(1, np.int64)], 0
    for block, lo, hi, a, b in ranges:
        bounds.append(block.offsets[a + 1 : b + 1] - lo + base)
        base += hi - lo
    cut = any(block.start is not None for block, *_ in ranges)
    starts = [_bounds(block, lo, hi) for block, lo, hi, _, _ in ranges] if cut else []
    epochs = [block.epoch for block, *_ in ranges]
    sizes = [hi - lo for _, lo, hi, _, _ in ranges]
    return Documents(
        np.concatenate([block.source[lo:hi] for block, lo, hi, _, _ in ranges]),
        np.concatenate([block.index[lo:hi] for block, lo, hi, _, _ in ranges]),
        np.concatenate(bounds),
        np.concatenate([s for s, _ in starts]) if cut else None,
        np.concatenate([s for _, s in starts]) if cut else None,
        epoch=epochs[0] if len(set(epochs)) == 1 else np.repeat(np.array(epochs, np.int64), sizes),
    )


def _bounds(block: Block, lo: int, hi: int) -> tuple[Ints, Ints]:
    if block.start is not None and block.stop is not None:
        return block.start[lo:hi], block.stop[lo:hi]
    assert block.lengths is not None
    return np.zeros(hi - lo, np.int64), block.lengths[lo:hi]


class Reader:
    """Reads documents of a planned feed.

    Args:
        leaves: its sources.
        seed: of functions that ask for random numbers.
        as_samples: samples as dicts are wanted (for `collate="raw"` or a function), not columns of tokens.
    """

    def __init__(self, leaves: Sequence[Leaf], seed: int, *, as_samples: bool = False) -> None:
        self.leaves, self.seed = list(leaves), seed
        self.call = MapRows(self.leaves, seed)
        self.seconds = (0.0, 0.0)  # of samples as dicts: reading, and in functions, over all workers
        self.by_samples = as_samples or any(leaf.maps or leaf.source.columns is None for leaf in leaves)
        self.ours = all(
            getattr(leaf.source, "ours", False) for leaf in leaves
        )  # read by our code alone, into new memory
        self.columns: list[str] | None = None
        self.segments: Segments | None = None  # of which rows positions are wanted with the tokens
        self.dtype = np.dtype(np.int64)  # of positions
        self.near = False  # tokens lie in memory, and nothing has to be fetched before
        if not self.by_samples:
            self.columns = self._token_columns()
            sources = [leaf.source for leaf in leaves]
            self.near = all(hasattr(s, "token_places") and say_of(s) is None for s in sources)

    def _token_columns(self) -> list[str]:
        """Choose what a token batch needs, and refuse columns that have no place in one."""
        known = [leaf.source.columns or () for leaf in self.leaves if len(leaf.source)]
        for leaf, columns in zip([x for x in self.leaves if len(x.source)], known, strict=True):
            if INPUT_IDS not in columns:
                raise ConfigError(
                    f"{leaf.title} has no column {INPUT_IDS!r}: it has {', '.join(columns) or 'none'}",
                    where="batch",
                    fix='encode it first (.map(TextEncoder(...)).cache()), or batch it as it is with collate="raw"',
                )
            for name in columns:
                if name not in {INPUT_IDS, LABELS, LOSS_SPANS, MASK, *PROVENANCE}:
                    raise ConfigError(
                        f"column {name!r} of {leaf.title} can't be collated", where="batch",
                        fix=f"take it away (.map(lambda s: {{}}, remove_columns=[{name!r}]); records: columns=[...]) "
                        "or give collate= a function",
                    )  # fmt: skip
            if MASK in columns:
                _must_be_ones(leaf)
        kinds = {LOSS_SPANS if LOSS_SPANS in c else LABELS if LABELS in c else "" for c in known}
        if len(kinds) > 1:
            raise ConfigError("sources name the loss in different ways: loss_spans, labels or neither", where="batch")
        return [INPUT_IDS, *(k for k in kinds if k)]

    def find(self, documents: Documents) -> None:
        """Find where their tokens lie, as far as that is known: of `read` one copy is left, which holds no lock."""
        if not self.near or not len(documents.index):
            return
        found = places_of(documents.source, [leaf.source for leaf in self.leaves], documents.index)
        if found is None:
            return
        if documents.start is not None and documents.stop is not None:
            addresses = found.addresses + documents.start * np.dtype(found.width).itemsize
            found = Places(addresses, documents.stop - documents.start, found.width)
        segments = None if self.segments is None else self.segments(found.sizes, documents.offsets)
        wide = documents.num_rows if segments is not found.sizes else None
        documents.copy = TokenCopy(found, segments, self.dtype, rows=wide)

    def read(self, documents: Documents) -> Documents:
        """Fill in what the documents hold."""
        if self.by_samples:
            self._read_samples(documents)
            return documents
        if not len(documents.index):
            documents.tokens = Ragged(np.empty(0, np.int32), np.zeros(1, np.int64))
            return documents
        assert self.columns is not None
        read: Columns = {}
        if documents.copy is not None:
            tokens, documents.positions = documents.copy()
            documents.tokens, documents.own, documents.copy = tokens, True, None
            if len(self.columns) == 1:
                return documents
            read = self._columns(documents, [c for c in self.columns if c != INPUT_IDS])
        else:
            read = self._columns(documents, self.columns)
            tokens = read[INPUT_IDS]
            documents.tokens, documents.own = tokens, self.ours and tokens.values.flags.writeable
        documents.spans, documents.labels = read.get(LOSS_SPANS), read.get(LABELS)
        _cut(documents, INPUT_IDS in read)
        return documents

    def _columns(self, documents: Documents, names: Sequence[str]) -> Columns:
        if len(self.leaves) == 1:
            return self.leaves[0].source.read(documents.index, names)
        return merge(documents.source, [leaf.source for leaf in self.leaves], documents.index, names)

    def _read_samples(self, documents: Documents) -> None:
        self.fill(documents, self.call(request_of(documents))[0])

    def fill(self, documents: Documents, result: Result) -> None:
        """Put samples that were read, here or by a worker, into their documents."""
        samples = self.call.take(result)
        self.seconds = (self.seconds[0] + result.seconds[0], self.seconds[1] + result.seconds[1])
        documents.samples = samples
        whole = [s for s in samples if s is not None]
        if whole and all(INPUT_IDS in s for s in whole):
            self._tokens_of(documents, samples)
        if documents.start is not None and documents.stop is not None:
            pieces = zip(samples, documents.start.tolist(), documents.stop.tolist(), strict=True)
            documents.samples = [None if s is None else _piece(s, a, b) for s, a, b in pieces]

    def _tokens_of(self, documents: Documents, samples: Sequence[Sample | None]) -> None:
        """Take the token columns out of samples; a hole becomes a document without tokens."""
        empty = np.empty(0, np.int32)
        documents.tokens = Ragged.from_rows([empty if s is None else s[INPUT_IDS] for s in samples], np.int32)
        names = {name for s in samples if s is not None for name in (LABELS, LOSS_SPANS) if name in s}
        if LABELS in names:
            documents.labels = Ragged.from_rows([empty if s is None else _labels_of(s) for s in samples], np.int64)
            bad = np.flatnonzero(documents.labels.lengths != documents.tokens.lengths)
            if len(bad):
                i = int(bad[0])
                leaf = self.leaves[int(documents.source[i])]
                raise SampleError(
                    f"sample {leaf.source.ids(documents.index[i : i + 1])[0]!r} has {int(documents.tokens.lengths[i])}"
                    f" input_ids and {int(documents.labels.lengths[i])} labels",
                    where=leaf.title, fix="labels are unshifted: one for each token, -100 off the loss",
                )  # fmt: skip
        elif LOSS_SPANS in names:
            none = np.empty((0, 2), np.int32)
            documents.spans = Ragged.from_rows([none if s is None else _spans_of(s) for s in samples], np.int32)
        _cut(documents)

    def id_hashes(self, documents: Documents) -> NDArray[np.uint64]:
        """Give the hashes of the ids of all documents, uint64 (n,), as stored with the data; 0 for a hole."""
        if len(self.leaves) == 1:
            out = np.array(self.leaves[0].source.id_hashes(documents.index), np.uint64)
        else:
            out = np.zeros(len(documents.index), np.uint64)
            for s, leaf in enumerate(self.leaves):
                mine = np.flatnonzero(documents.source == s)
                if len(mine):
                    out[mine] = leaf.source.id_hashes(documents.index[mine]) ^ np.uint64(key64("source", leaf.name))
        if documents.samples is not None:
            out[[i for i, s in enumerate(documents.samples) if s is None]] = 0
        return out

    def samples(self, documents: Documents) -> list[Sample]:
        """Give the documents as dicts, holes left out."""
        if documents.samples is not None:
            return [s for s in documents.samples if s is not None]
        columns: dict[str, Any] = {INPUT_IDS: documents.tokens}
        if documents.spans is not None:
            columns[LOSS_SPANS] = documents.spans
        if documents.labels is not None:
            columns[LABELS] = documents.labels
        return samples_of(columns, len(documents.index))


def _spans_of(sample: Sample) -> NDArray[np.int32]:
    """Give the spans in the loss; all tokens of a sample that marks none."""
    spans = sample.get(LOSS_SPANS)
    return np.asarray([[0, len(sample[INPUT_IDS])]] if spans is None else spans, np.int32).reshape(-1, 2)


def _labels_of(sample: Sample) -> Any:
    """Give unshifted labels, from spans where a sample has those; all tokens of a sample that marks none."""
    labels = sample.get(LABELS)
    if labels is not None:
        return labels
    ids, spans = np.asarray(sample[INPUT_IDS], np.int64), _spans_of(sample)
    return labels_from_spans(ids, np.array([0, len(ids)]), Ragged(spans, np.array([0, len(spans)])))


def _piece(sample: Sample, start: int, stop: int) -> Sample:
    """Give a piece of a sample: its tokens start to stop, and what belongs to them."""
    n = len(sample.get(INPUT_IDS, ()))
    if not n or (start == 0 and stop >= n):
        return sample
    out = {**sample, INPUT_IDS: sample[INPUT_IDS][start:stop]}
    if LABELS in sample:
        out[LABELS] = sample[LABELS][start:stop]
    if LOSS_SPANS in sample:
        moved = np.clip(np.asarray(sample[LOSS_SPANS]).reshape(-1, 2) - start, 0, stop - start)
        out[LOSS_SPANS] = moved[moved[:, 0] < moved[:, 1]].astype(np.int32)
    return out


def _cut(documents: Documents, whole: bool = True) -> None:
    """Cut labels and spans to the pieces that the plan asks for, and tokens where they are whole."""
    start, stop, tokens = documents.start, documents.stop, documents.tokens
    if start is None or stop is None or tokens is None:
        return
    if whole:
        stop = np.where(tokens.lengths > 0, stop, start)  # a hole stays one
        documents.tokens = cut_ragged(tokens, start, stop)
    if documents.labels is not None:
        documents.labels = cut_ragged(documents.labels, start, stop)
    if documents.spans is not None:
        documents.spans = cut_spans(documents.spans, start, stop)


def cut_ragged(rows: Ragged, start: Ints, stop: Ints) -> Ragged:
    """Give tokens start to stop of each row."""
    lengths = stop - start
    offsets = offsets_of(lengths)
    at = np.arange(offsets[-1]) + np.repeat(rows.offsets[:-1] + start - offsets[:-1], lengths)
    return Ragged(rows.values[at], offsets)
