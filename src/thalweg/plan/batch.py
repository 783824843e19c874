"""Batches of samples of like length: buckets, token budgets, groups. Alternatives to packing where rows are padded.

Decides which samples share a batch and how wide it is, from lengths in their order alone. A batch is written as a
row of `Rows`: its samples in order, and its width as the row's capacity. Knows no tokens and no rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from thalweg.core.errors import ConfigError, InputError, nearest
from thalweg.core.sample import offsets_of
from thalweg.core.seeds import Key, generator
from thalweg.plan.pack_cut import Loss
from thalweg.plan.pack_rows import Ints, Rows

Remainder: TypeAlias = Literal["pad", "keep", "drop", "up"]
PadTo: TypeAlias = Literal["longest", "boundary"]


@dataclass(frozen=True, slots=True, eq=False)
class Batches:
    """Batches, and what is in none of them.

    Args:
        rows: samples of each batch; `rows.capacities` is the width that its rows are padded to.
        sizes: int64 (b,), rows of each batch; more than its samples where filler rows of weight zero stand in.
        loss: samples and tokens left out, by reason.
    """

    rows: Rows
    sizes: Ints
    loss: Loss

    def shapes(self) -> dict[tuple[int, int], int]:
        """List the shapes (rows, width) of all batches, and how many have each."""
        assert self.rows.capacities is not None
        pairs, counts = np.unique(np.stack([self.sizes, self.rows.capacities], 1), axis=0, return_counts=True)
        return {(int(b), int(w)): int(n) for (b, w), n in zip(pairs, counts, strict=True)}

    @property
    def padded_tokens(self) -> int:
        """Tokens that the model computes on, padding and filler included."""
        assert self.rows.capacities is not None
        return int((self.sizes * self.rows.capacities).sum())


def bucket(
    lengths: ArrayLike,
    boundaries: Sequence[int],
    sizes: Sequence[int],
    *,
    remainder: Remainder = "pad",
    pad_to: PadTo = "longest",
    multiple: int = 1,
    run: int = 1,
) -> Batches:
    """Batch samples of like length, in the order in which batches fill up.

    Args:
        lengths: int (n,), in order.
        boundaries: rising; bucket i holds lengths above boundaries[i - 1] and up to boundaries[i], that included.
        sizes: rows of a batch of each bucket. One entry more than boundaries: the last bucket takes all that is
            longer. As many entries: a longer sample is refused.
        remainder: of the last batch of a bucket: "pad" (filler rows of weight zero), "keep" (a smaller batch),
            "drop" (left out and counted) or "up" (into the next bucket; the last one pads).
        pad_to: "longest" sample of the batch (of its run), or the bucket's "boundary".
        multiple: widths are a multiple of this.
        run: batches of one bucket that stand together, so that a step of `run` ranks has one shape.

    Raises:
        ConfigError: boundaries that do not rise, sizes that do not match, an unknown word.
        InputError: a sample above the last boundary where no bucket takes it.
    """
    _check_buckets(boundaries, sizes, remainder=remainder, pad_to=pad_to, multiple=multiple, run=run)
    n = np.asarray(lengths).astype(np.int64, copy=False)
    which = np.searchsorted(np.asarray(boundaries), n, side="left")
    if len(sizes) == len(boundaries) and which.max(initial=0) == len(boundaries):
        long = np.flatnonzero(which == len(boundaries))
        raise InputError(
            f"{len(long):,} of {len(n):,} samples are longer than the last boundary {boundaries[-1]:,}, the first is"
            f" sample {long[0]} with {n[long[0]]:,}",
            fix="give sizes one entry more, for a bucket of all longer ones, or filter them",
        )
    loss, groups = Loss(), list[tuple[int, int, Ints]]()  # (place of the last sample, bucket, samples) of a run
    over = np.empty(0, np.int64)
    for b, size in enumerate(sizes):
        own = np.sort(np.concatenate([np.flatnonzero(which == b), over]))
        whole = len(own) // (size * run) * size * run
        groups += [(int(part[-1]), b, part) for part in own[:whole].reshape(-1, size * run)]
        left, over = own[whole:], own[:0]
        if not len(left):
            continue
        if remainder == "drop":
            loss = loss.plus("last of a bucket", len(left), int(n[left].sum()))
        elif remainder == "up" and b + 1 < len(sizes):
            over = left
        else:
            groups.append((len(n), b, left))
    groups.sort(key=lambda g: (g[0], g[1]))
    limit = [*boundaries, *[0] * (len(sizes) - len(boundaries))]
    widths = [int(x) if pad_to == "boundary" else 0 for x in limit]
    filled = remainder in {"pad", "up"}
    return Batches(*_cut_runs(n, groups, sizes, widths, filled=filled, multiple=multiple, run=run), loss)


def _check_buckets(
    boundaries: Sequence[int], sizes: Sequence[int], *, remainder: str, pad_to: str, multiple: int, run: int
) -> None:
    for word, value, kind in (("remainder", remainder, Remainder), ("pad_to", pad_to, PadTo)):
        if value not in get_args(kind):
            raise ConfigError(f"unknown {word}={value!r}", where="bucket", fix=nearest(value, get_args(kind)))
    if not len(boundaries) or boundaries[0] < 1 or any(a >= b for a, b in pairwise(boundaries)):
        raise ConfigError(f"boundaries {list(boundaries)} must rise from at least 1", where="bucket")
    if len(sizes) - len(boundaries) not in {0, 1} or min(sizes) < 1 or multiple < 1 or run < 1:
        raise ConfigError(
            f"{len(sizes)} sizes for {len(boundaries)} boundaries: give one for each bucket, each at least 1, and one"
            " more for longer samples",
            where="bucket",
        )


def _cut_runs(
    n: Ints,
    groups: list[tuple[int, int, Ints]],
    sizes: Sequence[int],
    limits: list[int],
    *,
    filled: bool,
    multiple: int,
    run: int,
) -> tuple[Rows, Ints]:
    """Cut runs into batches, and give the rows of each; filled: a short run is spread over all its batches."""
    order: list[Ints] = []
    counts: list[int] = []
    rows: list[int] = []
    widths: list[int] = []
    for _, b, part in groups:
        size = sizes[b]
        pieces = run if filled else -(-len(part) // size)
        width = max(limits[b], int(n[part].max()))
        split = np.array_split(part, pieces) if len(part) < size * run else list(part.reshape(-1, size))
        order.append(part)
        counts += [len(p) for p in split]
        rows += [size if filled else len(p) for p in split]
        widths += [-(-width // multiple) * multiple] * len(split)
    offsets = offsets_of(counts)
    flat = np.concatenate(order) if order else np.empty(0, np.int64)
    return Rows(flat, offsets, None, np.array(widths, np.int64)), np.array(rows, np.int64)


def token_budget(
    lengths: ArrayLike, tokens: int, *, window: int | None = None, multiple: int = 1, key: tuple[Key, ...] | None = None
) -> Batches:
    """Batch as many samples as fit a number of padded tokens: rows x width is at most `tokens`.

    Args:
        lengths: int (n,), in order, each 1 to `tokens`.
        tokens: padded tokens of a batch.
        window: samples that are sorted by length together before they are cut into batches; None: 1,024. 1 keeps
            the order.
        multiple: widths are a multiple of this, which bounds the number of shapes by tokens / multiple widths.
        key: seeds the order of batches within a window; None leaves them sorted.

    Raises:
        InputError: a sample that does not fit a batch by itself.
    """
    n = np.asarray(lengths).astype(np.int64, copy=False)
    width = -(-np.maximum(n, 1) // multiple) * multiple
    if width.max(initial=0) > tokens:
        bad = int(np.argmax(width))
        raise InputError(
            f"sample {bad} has {n[bad]:,} tokens and a batch takes {tokens:,}", fix="raise the budget, or filter it"
        )
    order: list[Ints] = []
    counts: list[int] = []
    step = window or 1024
    for number, start in enumerate(range(0, len(n), step)):
        inside = start + np.argsort(width[start : start + step], kind="stable")
        cuts = _cut(width[inside].tolist(), tokens)
        parts = np.split(inside, cuts[1:-1])
        if key is not None:
            parts = [parts[i] for i in generator("budget", number, *key).permutation(len(parts))]
        order += parts
        counts += [len(p) for p in parts]
    offsets = offsets_of(counts)
    flat = np.concatenate(order) if order else np.empty(0, np.int64)
    widths = np.maximum.reduceat(width[flat], offsets[:-1]) if len(flat) else offsets[:0]
    return Batches(Rows(flat, offsets, None, widths), np.diff(offsets), Loss())


def _cut(widths: list[int], tokens: int) -> list[int]:
    """Give the places where batches begin and end, taking samples in order while they fit."""
    cuts, first, widest = [0], 0, 0
    for i, w in enumerate(widths):
        widest = max(widest, w)
        if (i + 1 - first) * widest > tokens:
            cuts.append(i)
            first, widest = i, w
    return [*cuts, len(widths)]


def group_by_length(lengths: ArrayLike, batch: int, *, window: int = 50, key: tuple[Key, ...] = ()) -> Ints:
    """Order samples so that neighbours are of like length, and batches of them still come at random.

    Args:
        lengths: int (n,), in order.
        batch: samples of a batch.
        window: batches that are sorted by length together.
        key: seeds the order of batches within a window.

    Returns:
        int64 (n,), a permutation; consecutive groups of `batch` are the batches.
    """
    n = np.asarray(lengths)
    order = np.arange(len(n))
    size = window * batch
    for number, start in enumerate(range(0, len(n), size)):
        inside = start + np.argsort(n[start : start + size], kind="stable")
        whole = len(inside) // batch * batch
        runs = generator("group", number, *key).permutation(whole // batch)
        order[start : start + whole] = inside[:whole].reshape(-1, batch)[runs].reshape(-1)
        order[start + whole : start + len(inside)] = inside[whole:]
    return order


def padding_share(lengths: ArrayLike, batch: int | None = None, *, to: int | None = None) -> float:
    """Give the share of computed tokens that is padding, without packing: 0 to 1.

    Args:
        lengths: int (n,), in the order of batches.
        batch: samples of a batch, padded to its longest; None: all samples are padded to one width.
        to: that width; None: the longest sample.
    """
    n: NDArray[np.integer] = np.asarray(lengths)
    if not n.size:
        return 0.0
    if batch is None:
        padded = len(n) * (to or int(n.max()))
    else:
        starts = np.arange(0, len(n), batch)
        padded = int((np.maximum.reduceat(n, starts) * np.diff(np.append(starts, len(n)))).sum())
    return 1.0 - float(n.sum()) / padded
