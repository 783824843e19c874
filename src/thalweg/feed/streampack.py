"""Packing on a stream: documents come one by one, rows go out as soon as they are full.

Decides what a row's place is: the place before the oldest document that is in no row yet, which of the later ones
are, and rows that are ready but not handed over. A resume reads those documents again and packs on as if it had
never stopped. Which documents share a row is the business of `plan.pack_stream`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from thalweg.core.errors import InputError, SampleError
from thalweg.core.sample import IGNORE_INDEX, INPUT_IDS, LABELS, LOSS_SPANS, Sample
from thalweg.core.tally import Tally
from thalweg.feed import stages as st
from thalweg.feed.events import (
    END,
    EPOCH,
    FAIL,
    ID,
    ITEM,
    NO_SOURCE,
    PASS,
    SOURCE,
    VALUE,
    Event,
    EventNode,
    SourceEpoch,
    Token,
)
from thalweg.feed.losses import written
from thalweg.plan.pack_state import PackedRow, Packer
from thalweg.plan.pack_stream import packer


class Piece(NamedTuple):
    """A document of a row, or the part [start, stop) of it."""

    sample: Sample
    start: int
    stop: int
    id: Any
    source: SourceEpoch = NO_SOURCE


@dataclass(slots=True)
class _Doc:
    """A document that is not in a handed-over row yet."""

    piece: Piece
    first: int  # key of its document's first piece
    before: Token  # upstream place before its document


@dataclass(slots=True)
class _Sub:
    """What is held for one sub-stream."""

    packer: Packer
    place: Token  # upstream place after the last event
    read: Token  # the same, with a document whose pieces are not all packed
    next_key: int = 0
    seen: int = 0  # keys read again after a restore; equal to next_key once all are back
    needed: frozenset[int] = frozenset()
    pending: list[PackedRow] = field(default_factory=list[PackedRow])
    docs: dict[int, _Doc] = field(default_factory=dict[int, _Doc])


class PackNode:
    """Packs each sub-stream's documents into rows; the value of an event is the row as a list of `Piece`.

    Token: (upstream place before the oldest document needed, its key, next key, packer state, rows ready). Where a
    document is needed, the place behind all that were read is sixth.
    """

    def __init__(self, upstream: EventNode, stage: st.Pack) -> None:
        self._upstream, self._stage = upstream, stage
        self._subs: dict[int, _Sub] = {}
        self.tally = Tally()
        self.lost: dict[str, tuple[int, int]] = {}  # reason -> documents, tokens: left out or cut
        self.seconds = 0.0  # in which documents found their rows

    def _packer(self) -> Packer:
        stage = self._stage
        return packer(stage.policy, stage.longest, align=stage.align, max_docs=stage.max_docs)

    def first(self, sub: int, epoch: int = 0) -> Token:
        """Give the token of the beginning of an epoch."""
        return (self._upstream.first(sub, epoch), 0, 0, None, [])

    def begin_of(self, sub: int, token: Token) -> Token:
        """Give the token of the beginning of a token's epoch."""
        return (self._upstream.begin_of(sub, token[0]), 0, 0, None, [])

    def origin_of(self, token: Token) -> Token:
        """Give the source's place inside a token."""
        return self._upstream.origin_of(token[0])

    def head_of(self, token: Token) -> Token:
        """Give the place up to which the head was read for a token, documents in no row yet included."""
        return self._upstream.head_of(token[5] if len(token) > 5 else token[0])

    def restore(self, tokens: Mapping[int, Token]) -> None:
        """Go to the places of these sub-streams."""
        self._subs = {}
        for sub, (place, base, next_key, state, pending, *_) in tokens.items():
            made = self._packer()
            rows = [PackedRow(list(k), f, None if p is None else [tuple(x) for x in p]) for k, f, p in pending]
            needed = {k for row in rows for k in row.keys}
            if state is not None:
                made.restore(state)
                needed.update(state["keys"], state["open_keys"])
            self._subs[sub] = _Sub(made, place, place, int(next_key), int(base), frozenset(needed), rows)
        self._upstream.restore({s: t[0] for s, t in tokens.items()})

    def __iter__(self) -> Iterator[Event]:
        """Give rows."""
        for sub, held in self._subs.items():  # rows that were ready and need no document read again
            if held.seen == held.next_key and held.pending:
                yield from self._ready(sub, held, 0)
        for event in self._upstream:
            kind, sub, _, token, _, epoch, source = event
            if kind == FAIL:
                yield event
                return
            held = self._subs[sub]
            held.read = token
            if kind == ITEM:
                yield from self._take(sub, held, event)
            held.place = token
            if kind == END:
                held.pending = held.packer.flush()
                yield from self._ready(sub, held, epoch)
                held.packer, held.next_key, held.seen = self._packer(), 0, 0
                held.docs.clear()
                yield (END, sub, None, self._token(held), None, epoch, source)
            elif not held.docs and held.seen == held.next_key and not held.pending:
                yield (PASS, sub, None, self._token(held), None, epoch, source)

    def _take(self, sub: int, held: _Sub, event: Event) -> Iterator[Event]:
        try:
            pieces = self._pieces(event)
        except Exception as error:  # noqa: BLE001  takes its place in the order
            yield (FAIL, sub, error, None, event[ID], event[EPOCH], event[SOURCE])
            return
        first, before, last = None, held.place, len(pieces) - 1
        for k, piece in enumerate(pieces):
            if held.seen < held.next_key:  # read again: it was pushed before the state was taken
                key, held.seen = held.seen, held.seen + 1
                first = key if first is None else first
                if key in held.needed:
                    held.docs[key] = _Doc(piece, first, before)
                if held.seen == held.next_key and held.pending:
                    held.place = event[3] if k == last else before
                    yield from self._ready(sub, held, event[EPOCH], None if k == last else first)
                continue
            key = held.next_key
            held.next_key = held.seen = key + 1
            first = key if first is None else first
            held.docs[key] = _Doc(piece, first, before)
            length, start = piece.stop - piece.start, perf_counter()
            if length > self._stage.longest and self._stage.policy != "concat_split":
                held.pending = [PackedRow([key], 0)]
            else:
                held.pending = held.packer.push(length, key)
            self.seconds += perf_counter() - start
            held.place = event[3] if k == last else before
            yield from self._ready(sub, held, event[EPOCH], None if k == last else first)

    def _ready(self, sub: int, held: _Sub, epoch: int, under_way: int | None = None) -> Iterator[Event]:
        """Hand over the rows that are ready; `under_way`: first key of a document whose pieces are not all pushed."""
        while held.pending:
            start = perf_counter()
            row = held.pending.pop(0)
            parts = [(0, None)] * len(row.keys) if row.pieces is None else row.pieces
            value = []
            for key, (a, b) in zip(row.keys, parts, strict=True):
                piece = held.docs[key].piece
                stop = piece.stop if b is None else piece.start + b
                value.append(piece._replace(start=piece.start + a, stop=stop))
            token = self._token(held, under_way)
            self.tally.out += len(row.keys)
            self.seconds += perf_counter() - start
            yield (ITEM, sub, value, token, None, epoch, NO_SOURCE)

    def _token(self, held: _Sub, under_way: int | None = None) -> Token:
        """Say where the sub-stream is, and forget documents that are in rows handed over."""
        state = held.packer.state()
        needed = {*state["keys"], *state["open_keys"], *(k for row in held.pending for k in row.keys)}
        if held.docs.keys() - needed:
            held.docs = {k: d for k, d in held.docs.items() if k in needed}
        oldest = min((held.docs[k].first for k in needed), default=under_way)
        pending = [(row.keys, row.free, row.pieces) for row in held.pending]
        empty = not state["keys"] and not state["open_keys"]
        packed = None if empty and not state["offset"] else state
        if oldest is None:
            return (held.place, held.next_key, held.next_key, packed, pending)
        before = next((d.before for d in held.docs.values() if d.first == oldest), held.place)
        return (before, oldest, held.next_key, packed, pending, held.read)

    def _pieces(self, event: Event) -> list[Piece]:
        """Apply the overlong rule to one document."""
        sample, stage, name, source = event[VALUE], self._stage, event[ID], event[SOURCE]
        if INPUT_IDS not in sample:
            raise SampleError(
                f"sample {str(name)!r} has no column {INPUT_IDS!r}: it has {', '.join(sample)}", where=str(stage),
                fix="encode it first: .map(TextEncoder(...))",
            )  # fmt: skip
        n = len(sample[INPUT_IDS])
        self.tally.taken += 1
        if n == 0:
            self.tally.drop("empty")
            return []
        if n <= stage.longest or stage.policy == "concat_split" or stage.overlong == "alone":
            return [Piece(sample, 0, n, name, source)]
        if stage.overlong == "drop":
            self._lose("overlong", n)
            return []
        if stage.overlong == "truncate":
            if not trained(sample, stage.longest):
                self._lose("no token in the loss after truncation", n)
                return []
            self._lose("truncated", n - stage.longest, dropped=False)
            return [Piece(sample, 0, stage.longest, name, source)]
        if stage.overlong == "split":
            if LOSS_SPANS in sample or LABELS in sample:
                plain = trained(sample, n) >= n - 1
                if not plain:
                    raise SampleError(
                        f"sample {str(name)!r} has {n:,} tokens, not all in the loss, and can't be split",
                        where=str(stage),
                        fix='overlong="drop" or "truncate" for conversations',
                    )
            cuts = range(0, n, stage.longest)
            self.tally.made += len(cuts) - 1
            self._lose("split", 0, dropped=False)
            return [Piece(sample, a, min(a + stage.longest, n), name, source) for a in cuts]
        raise InputError(
            f"sample {str(name)!r} has {n:,} tokens and rows take {stage.longest:,}", where=str(stage),
            fix='say overlong="drop", "truncate", "split" or "alone"',
        )  # fmt: skip

    def _lose(self, reason: str, tokens: int, *, dropped: bool = True) -> None:
        """Count a document that is left out, or cut, with the tokens that are in no row."""
        documents, before = self.lost.get(reason, (0, 0))
        self.lost[reason] = (documents + 1, before + tokens)
        if dropped:
            self.tally.drop(reason)

    def stats(self) -> dict[str, Any]:
        """Count documents, and those left out or cut with their tokens, by reason."""
        return {**self.tally.to_dict(), "lost": written(self.lost)}

    def stop(self) -> None:
        """Wake upstream."""
        self._upstream.stop()

    def close(self) -> None:
        """Close upstream."""
        self._upstream.close()


def trained(sample: Sample, stop: int) -> int:
    """Count the tokens in the loss among the first `stop`, after the shift: the first token is never in it."""
    if LABELS in sample:
        return int(np.count_nonzero(np.asarray(sample[LABELS])[1:stop] != IGNORE_INDEX))
    if LOSS_SPANS in sample:
        spans = np.clip(np.asarray(sample[LOSS_SPANS], np.int64).reshape(-1, 2), 1, max(stop, 1))
        return int(np.maximum(spans[:, 1] - spans[:, 0], 0).sum())
    return max(stop - 1, 0)
