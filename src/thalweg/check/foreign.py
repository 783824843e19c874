"""Data of other libraries: loaders of batches, one or one a rank, and the samples behind them.

Decides how a torch DataLoader, any iterable of batches and a map-style data set are looked at. A loader is read from
its start, twice where it can be; nothing is put back.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import xxhash

from thalweg.check.columns import spans_beyond
from thalweg.check.evidence import Evidence, Segment, Walked
from thalweg.check.rehearse import take_batch
from thalweg.check.rows import array, rows_of
from thalweg.core.sample import IGNORE_INDEX, INPUT_IDS

BATCHES = 64  # whose rows are looked at
MOST = 20_000  # batches of a rank that are counted


def is_loader(x: Any) -> bool:
    """Say whether something gives batches when iterated, as a DataLoader or a list of batches does."""
    if isinstance(x, Mapping | str | bytes):
        return False
    if hasattr(x, "collate_fn") and hasattr(x, "__iter__"):
        return True
    first = x[0] if isinstance(x, list | tuple) and x else None
    return first is not None and bool(rows_of(first))


def of_loaders(e: Evidence, loaders: Sequence[Any], samples: int) -> None:
    """Look at the batches of the first rank, at the order of all ranks for two passes, and at the samples behind."""
    shuffled = [_shuffles(x) for x in loaders]
    e.shuffled = None if None in shuffled else all(shuffled)
    first = iter(loaders[0])
    kept: list[Any] = []
    for batch in islice(first, BATCHES):
        kept.append(batch)
        take_batch(e, batch)
    for epoch in range(2):
        ranks: list[Walked] = []
        for number, loader in enumerate(loaders):
            if hasattr(loader, "__next__") and (epoch or number == 0):
                rest = [] if epoch else [*kept, *islice(first, MOST)]
                ranks += [_walked(rest)] if rest else []
                continue
            _tell_epoch(loader, epoch)
            ranks.append(_walked(islice(loader, MOST)))
        if ranks and any(r.ids for r in ranks):
            e.epochs.append(ranks)
    _samples_behind(e, getattr(loaders[0], "dataset", None), samples)
    e.asked = e.asked or len(e.rows)
    e.lengths = np.array([len(s.ids) for s in e.documents or e.in_rows], np.int64)
    e.unbatched = "" if e.shapes or not kept else "batches have no token ids of shape (rows, width)"


def _tell_epoch(loader: Any, epoch: int) -> None:
    """Tell a sampler the epoch, as trainers do."""
    owners: list[Any] = [loader, getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)]
    for owner in owners:
        if hasattr(owner, "set_epoch"):
            owner.set_epoch(epoch)
            return


def _shuffles(loader: Any) -> bool | None:
    """Say whether a loader is meant to shuffle; None where it doesn't say."""
    sampler = getattr(loader, "sampler", None)
    if sampler is None:
        return None
    shuffle = getattr(sampler, "shuffle", None)
    return bool(shuffle) if shuffle is not None else type(sampler).__name__ == "RandomSampler" or None


def _walked(batches: Iterable[Any]) -> Walked:
    ids: list[str] = []
    steps = tokens = 0
    for batch in batches:
        for row in rows_of(batch):
            for a, b in row.edges:
                ids.append(xxhash.xxh3_64_hexdigest(np.ascontiguousarray(row.ids[a:b]).tobytes())[:12])
                tokens += b - a
        steps += 1
    return Walked(tuple(ids), steps, tokens)


def _samples_behind(e: Evidence, dataset: Any, samples: int) -> None:
    """Look at samples of a map-style data set that have tokens; packs of several are taken apart."""
    if dataset is None or not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        return
    n = len(dataset)
    e.total = n
    for index in np.unique(np.linspace(0, max(n - 1, 0), min(n, samples)).astype(int)).tolist():
        e.asked += 1
        try:
            found = list(_flat(dataset[index]))
        except Exception as error:  # noqa: BLE001 (a foreign data set may raise anything)
            e.failed.append((f"sample {index}", f"{type(error).__name__}: {error}"[:200]))
            continue
        for sample in found:
            e.columns.append(sample)
            e.places.append(f"sample {index}")
            e.segments.append(segment_of(str(index), sample))


def _flat(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, Mapping):
        if value.get(INPUT_IDS) is not None:
            yield value
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _flat(inner)


def segment_of(name: str, sample: Mapping[str, Any], *, raw: Any = None, source: str = "") -> Segment:
    """See a sample as a segment; what is no flat list of whole numbers counts as empty."""
    ids = _numbers(sample.get(INPUT_IDS))
    labels = sample.get("labels")
    spans = sample.get("loss_spans")
    beyond: Sequence[Sequence[int]] = ()
    if labels is not None:
        marked = _numbers(labels)
    elif spans is not None:
        marked = np.full(len(ids), IGNORE_INDEX, np.int64)
        beyond = spans_beyond(spans, len(ids))
        for a, b in np.asarray(spans).reshape(-1, 2).tolist():
            marked[a:b] = ids[a:b]
    else:
        marked = None
    mask = sample.get("attention_mask")
    attention = None if mask is None else _numbers(mask)
    return Segment(name, ids, marked, attention, raw=raw, source=source, beyond=beyond)


def _numbers(value: Any) -> Any:
    try:
        found = array(value)
    except ValueError:
        return np.empty(0, np.int64)
    return found.astype(np.int64) if found.ndim == 1 and found.dtype.kind in "iub" else np.empty(0, np.int64)
