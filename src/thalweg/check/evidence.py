"""What the checks look at: documents, rows of batches, orders of ranks and epochs, lengths and times.

Decides how a sample, a batch of any library and a tokenizer are seen by a check. Opens nothing and judges nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.core.sample import IGNORE_INDEX

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Words:
    """What is known of a tokenizer.

    Args:
        size: ids it can give, added tokens included.
        bos, eos, pad: ids, None where there is none.
        ends: ids that end a text or an answer.
        decode: ids -> text.
        encode: text -> ids, without tokens of its own.
        reads: False where only numbers are known, so that no text can be compared.
    """

    size: int
    bos: int | None
    eos: int | None
    pad: int | None
    ends: frozenset[int]
    decode: Callable[[list[int]], str]
    encode: Callable[[str], list[int]]
    reads: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """The tokens of one document, as a sample or as a part of a row.

    Args:
        name: id of the sample, or the place of the row.
        ids: (n,) token ids.
        labels: (n,) as given; None trains all.
        attention: (n,) 0 where the model does not look; None where nothing is said.
        shifted: True where labels stand one to the left.
        row: number of its row in the batches, -1 for a sample.
        first: False where another document stands before it in the row.
        raw: the record that it was made of, None where unknown.
        source: name of its source.
        beyond: spans [start, end] of its loss that do not lie inside its tokens.
    """

    name: str
    ids: Ints
    labels: Ints | None = None
    attention: Ints | None = None
    shifted: bool = False
    row: int = -1
    first: bool = True
    raw: Mapping[str, Any] | None = None
    source: str = ""
    beyond: Sequence[Sequence[int]] = ()

    @property
    def trained(self) -> Bools:
        """Say of each token whether the model is asked to predict it, bool (n,); never of the first."""
        n = len(self.ids)
        if self.labels is None:
            on = np.ones(n, bool)
        elif self.shifted:
            on = np.zeros(n, bool)
            on[1:] = self.labels[: max(n - 1, 0)] != IGNORE_INDEX
        else:
            on = np.zeros(n, bool)
            on[: len(self.labels)] = self.labels[:n] != IGNORE_INDEX
        on[:1] = False
        return on


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One row of a batch, as the model gets it.

    Args:
        ids: (L,) token ids.
        labels: (L,) as given, None where the batch has none.
        attention: (L,) what the batch says of padding or of documents; None where it says nothing.
        positions: (L,) text positions, None where the batch has none.
        edges: (start, end) of each document, padding left out.
        shifted: True where labels stand one to the left.
    """

    ids: Ints
    labels: Ints | None
    attention: Ints | None
    positions: Ints | None
    edges: tuple[tuple[int, int], ...]
    shifted: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Walked:
    """The ids that one rank saw in one epoch, in order, and its steps and tokens."""

    ids: tuple[str, ...]
    steps: int
    tokens: int = 0


@dataclass(eq=False)
class Evidence:
    """Everything that was found out about a target before anything is judged.

    Args:
        title: what it is.
        asked: samples that were looked at.
        total: samples that there are; None where unknown.
        raw: records before any function, where they were read.
        raw_places: of each of them, the file and line or the id; as many as `raw`, or none.
        columns: of each sample that could be made, name -> value.
        places: of each of them, the file and line or the id; as many as `columns`, or none.
        segments: documents of the samples, then documents of the rows.
        rows: rows of some batches.
        shapes: (rows, width) of each batch looked at.
        failed: (sample and stage, error) of samples that could not be made.
        remedy: what the first of these errors says is to be tried; "" where it says nothing.
        unbatched: why no batch could be made; "" where it could, or none was tried.
        max_bad: share of samples that may fail.
        words: the tokenizer, None where unknown.
        embedding: rows of the model's embedding table, None where unknown.
        model_kind: "decoder" | "encoder-decoder" | None.
        generating: True where batches are prompts to be continued.
        lengths: token counts of all samples where known, else of those looked at.
        capacity: tokens of a packed row; None where nothing is packed.
        overlong: what becomes of samples longer than that.
        max_length: where samples are cut, None where unknown.
        shuffled: whether the data is meant to come in another order in each epoch; None where unknown.
        repeats: whether a sample may rightly come more than once in an epoch.
        epochs: epoch -> one entry a rank.
        weights: source -> weight asked for.
        drawn: source -> share delivered.
        drawn_of: samples or tokens that the shares are of.
        seconds: stage -> seconds for `asked` samples in one process.
        cached: whether functions run once only.
        sample_bytes: bytes of a sample in memory, on average.
        batch_tokens: places of a batch.
        encoder: what made the tokens, as it was typed; "" where unknown.
        train_on: what the encoder says it trains on.
        own: True where batches are thalweg's, whose masks come from positions.
    """

    title: str
    asked: int = 0
    total: int | None = None
    raw: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])
    raw_places: list[str] = field(default_factory=list[str])
    columns: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])
    places: list[str] = field(default_factory=list[str])
    segments: list[Segment] = field(default_factory=list[Segment])
    rows: list[Row] = field(default_factory=list[Row])
    shapes: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    failed: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    remedy: str = ""
    unbatched: str = ""
    max_bad: float = 0.01
    words: Words | None = None
    embedding: int | None = None
    model_kind: str | None = None
    generating: bool = False
    lengths: NDArray[Any] | None = None
    capacity: int | None = None
    overlong: str | None = None
    max_length: int | None = None
    shuffled: bool | None = None
    repeats: bool = False
    epochs: list[list[Walked]] = field(default_factory=list[list[Walked]])
    weights: dict[str, float] = field(default_factory=dict[str, float])
    drawn: dict[str, float] = field(default_factory=dict[str, float])
    drawn_of: int = 0
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    cached: bool = False
    sample_bytes: float = 0.0
    batch_tokens: int = 0
    encoder: str = ""
    train_on: str | None = None
    own: bool = False

    @property
    def documents(self) -> list[Segment]:
        """Samples alone, rows left out."""
        return [s for s in self.segments if s.row < 0]

    @property
    def in_rows(self) -> list[Segment]:
        """Documents as the rows of batches hold them."""
        return [s for s in self.segments if s.row >= 0]

    @property
    def judged(self) -> Sequence[Segment]:
        """What checks of masks look at: rows where there are batches, for they are what the model sees."""
        return self.in_rows or self.documents
