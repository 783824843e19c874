"""Parts and unions of sources, seen as sources themselves.

Decides how indices go through `take`, `skip`, `select`, `split`, `filter` and `concat`. Copies no sample. Knows no
order, epoch or function.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.core.errors import ConfigError
from thalweg.core.sample import INPUT_IDS, Ragged, offsets_of
from thalweg.core.state import digest
from thalweg.feed.source import Columns, Source
from thalweg.plan.table import by_source
from thalweg.store.records.gather import gather_at
from thalweg.store.records.token_ids import Places

Ints = NDArray[np.int64]


class Part:
    """Some samples of a source, in a given order.

    Args:
        base: the source.
        indices: int64 (k,), or a range, which costs no memory.
    """

    def __init__(self, base: Source, indices: Ints | range) -> None:
        if isinstance(indices, range):
            low, high = (min(indices[0], indices[-1]), max(indices[0], indices[-1])) if len(indices) else (0, -1)
        else:
            indices = np.asarray(indices, np.int64)
            low, high = (int(indices.min()), int(indices.max())) if len(indices) else (0, -1)
        if low < 0 or high >= len(base):
            raise ConfigError(f"index {low if low < 0 else high} is outside a source of {len(base):,} samples")
        self.base, self.indices = base, indices

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def ours(self) -> bool:
        """Say whether no code of the user's is run when it is read."""
        return bool(getattr(self.base, "ours", False))

    def of(self, indices: Ints) -> Ints:
        """Give the indices in the base."""
        if isinstance(self.indices, range):
            return self.indices.start + indices * self.indices.step
        return self.indices[indices]

    @property
    def _where(self) -> Any:
        r = self.indices
        if isinstance(r, range):
            return slice(r.start, r.stop if r.stop >= 0 else None, r.step)
        return r

    @property
    def lengths(self) -> NDArray[np.int32] | None:
        """Token counts of the part."""
        lengths = self.base.lengths
        return None if lengths is None else lengths[self._where]

    @property
    def facts(self) -> Mapping[str, NDArray[Any]]:
        """Table columns of the part."""
        return {k: v[self._where] for k, v in self.base.facts.items()}

    @property
    def fingerprint(self) -> str:
        """Hash of the base and the choice."""
        chosen = repr(self.indices) if isinstance(self.indices, range) else digest_array(self.indices)
        return digest([self.base.fingerprint, chosen])

    @property
    def columns(self) -> tuple[str, ...] | None:
        """Columns of the base."""
        return self.base.columns

    @property
    def lineage(self) -> Mapping[str, Any]:
        """Lineage of the base."""
        return self.base.lineage

    def read(self, indices: Ints, columns: Sequence[str] | None = None) -> Columns:
        """Read from the base."""
        return self.base.read(self.of(indices), columns)

    def token_places(self, indices: Ints, together: int) -> Places | None:
        """Say where the base has their tokens in memory."""
        say = getattr(self.base, "token_places", None)
        return None if say is None else say(self.of(indices), together)

    def ahead(self, indices: Ints, calls: int) -> bool:
        """Tell the base which samples are read next."""
        say = getattr(self.base, "ahead", None)
        return say is not None and say(self.of(indices), calls)

    def ids(self, indices: Ints) -> list[str]:
        """Ids of the base."""
        return self.base.ids(self.of(indices))

    def id_hashes(self, indices: Ints) -> NDArray[np.uint64]:
        """Hashes of the base's ids."""
        return self.base.id_hashes(self.of(indices))


def digest_array(values: NDArray[Any]) -> str:
    """Hash an array of numbers."""
    import xxhash  # noqa: PLC0415

    return xxhash.xxh3_128_hexdigest(np.ascontiguousarray(values).data)


class Union:
    """Several sources end to end.

    Args:
        parts: (name, source, passes): `passes` copies of each, one after another.
    """

    def __init__(self, parts: Sequence[tuple[str, Source, int]]) -> None:
        self.names = [name for name, _, _ in parts]
        self.parts = [source for _, source, _ in parts]
        self.passes = [times for _, _, times in parts]
        sizes = [len(p) * t for p, t in zip(self.parts, self.passes, strict=True)]
        self.ends = np.cumsum(sizes, dtype=np.int64)

    def __len__(self) -> int:
        return int(self.ends[-1])

    @property
    def ours(self) -> bool:
        """Say whether no code of the user's is run when they are read."""
        return all(getattr(p, "ours", False) for p in self.parts)

    def place(self, indices: Ints) -> tuple[NDArray[np.intp], Ints]:
        """Give (part, index in the part) of each index."""
        part = np.searchsorted(self.ends, indices, side="right")
        starts = np.append(0, self.ends[:-1])
        sizes = np.array([max(len(p), 1) for p in self.parts], np.int64)
        return part, (indices - starts[part]) % sizes[part]

    def _all(self, columns: Sequence[NDArray[Any]]) -> NDArray[Any]:
        return np.concatenate([np.tile(c, t) if t > 1 else c for c, t in zip(columns, self.passes, strict=True)])

    @property
    def lengths(self) -> NDArray[np.int32] | None:
        """Token counts of all parts; None where one does not know them."""
        lengths = [p.lengths for p in self.parts]
        known = [x for x in lengths if x is not None]
        return self._all(known) if len(known) == len(lengths) else None

    @property
    def facts(self) -> Mapping[str, NDArray[Any]]:
        """Table columns that all parts have."""
        facts = [p.facts for p in self.parts]
        shared = [k for k in facts[0] if all(k in f for f in facts)]
        return {k: self._all([f[k] for f in facts]) for k in shared}

    @property
    def fingerprint(self) -> str:
        """Hash of names, parts and passes in order."""
        return digest([[n, p.fingerprint, t] for n, p, t in zip(self.names, self.parts, self.passes, strict=True)])

    @property
    def columns(self) -> tuple[str, ...] | None:
        """Columns that all parts have."""
        columns = [p.columns for p in self.parts]
        if any(c is None for c in columns):
            return None
        return tuple(c for c in columns[0] or () if all(c in (other or ()) for other in columns))

    @property
    def lineage(self) -> Mapping[str, Any]:
        """What all parts agree on."""
        first, *others = [p.lineage for p in self.parts]
        return {k: v for k, v in first.items() if all(o.get(k) == v for o in others)}

    def read(self, indices: Ints, columns: Sequence[str] | None = None) -> Columns:
        """Read each part's rows and put them back in order."""
        part, inner = self.place(indices)
        wanted = columns if columns is not None else self.columns
        return merge(part, self.parts, inner, wanted)

    def ahead(self, indices: Ints, calls: int) -> bool:
        """Tell the parts which of their samples are read next; none: nothing more is."""
        part, inner = self.place(indices)
        says = [(k, say) for k, p in enumerate(self.parts) if (say := getattr(p, "ahead", None)) is not None]
        told = [(say, inner[part == k]) for k, say in says]
        answers = [say(rows, calls) for say, rows in told if len(rows) or not len(indices)]
        return any(answers)

    def ids(self, indices: Ints) -> list[str]:
        """Ids of the parts."""
        part, inner = self.place(indices)
        out = [""] * len(indices)
        for i, source in enumerate(self.parts):
            mine = np.flatnonzero(part == i)
            for at, name in zip(mine.tolist(), source.ids(inner[mine]) if len(mine) else [], strict=True):
                out[at] = name
        return out

    def id_hashes(self, indices: Ints) -> NDArray[np.uint64]:
        """Hashes of the parts' ids."""
        part, inner = self.place(indices)
        out = np.empty(len(indices), np.uint64)
        for i, source in enumerate(self.parts):
            mine = np.flatnonzero(part == i)
            if len(mine):
                out[mine] = source.id_hashes(inner[mine])
        return out


def merge(part: NDArray[Any], sources: Sequence[Source], inner: Ints, columns: Sequence[str] | None) -> Columns:
    """Read rows from several sources and give their columns in the order asked.

    Args:
        part: int (n,), which source each row comes from.
        sources: by that number.
        inner: int64 (n,), index of each row in its source.
        columns: their names; None: all.
    """
    asked, place = _by_source(part, sources, inner)
    if len(asked) < 2:
        read: Columns = (asked[0][0] if asked else sources[0]).read(inner, columns) if sources else {}
        return read
    found = _places(asked, place) if columns is not None and INPUT_IDS in columns else None
    if columns is None or found is None:
        reads = [source.read(rows, columns) for source, rows in asked]
        names = [k for k in reads[0] if all(k in read for read in reads)]
        return {k: _interleave(place, [read[k] for read in reads]) for k in names}
    tokens = tokens_at(found)
    rest = [c for c in columns if c != INPUT_IDS]
    others = merge(part, sources, inner, rest) if rest else {}
    return {k: tokens if k == INPUT_IDS else others[k] for k in columns if k == INPUT_IDS or k in others}


def places_of(part: NDArray[Any], sources: Sequence[Any], inner: Ints) -> Places | None:
    """Say where the tokens of rows lie, in the order asked; None where they are not all mapped, or of other widths.

    Args: as `merge` has them.
    """
    if len(sources) == 1:
        return _places([(sources[0], inner)], None)
    asked, place = _by_source(part, sources, inner)
    return _places(asked, place) if asked else None


def _by_source(part: NDArray[Any], sources: Sequence[Any], inner: Ints) -> tuple[list[tuple[Any, Ints]], Ints]:
    """Give (source, its rows as they come) of each source that is asked, and the number of each row among them all."""
    order, ends = by_source(part, len(sources))
    mine, place = inner[order], np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return [(source, mine[a:b]) for source, a, b in zip(sources, [0, *ends], ends, strict=False) if a < b], place


def _places(asked: Sequence[tuple[Any, Ints]], place: Ints | None) -> Places | None:
    """Put the places of several sources in order: row i of the result is row place[i] of all, end to end."""
    found: list[Places] = []
    for source, rows in asked:
        say = getattr(source, "token_places", None)
        places: Places | None = None if say is None else say(rows, len(asked))
        if places is None or (found and places.width != found[0].width):
            return None
        found.append(places)
    if len(found) == 1:
        return found[0]
    addresses, sizes = np.concatenate([f.addresses for f in found]), np.concatenate([f.sizes for f in found])
    return Places(addresses[place], sizes[place], found[0].width)


def tokens_at(found: Places) -> Ragged:
    """Copy tokens from where they lie, int32, in one go."""
    values = gather_at(found.addresses, found.width, found.sizes)
    return Ragged(values.astype(np.int32, copy=False), offsets_of(found.sizes))


def _interleave(place: Ints, parts: Sequence[Any]) -> Any:
    """Put the rows of several columns of one name in order: row i of the result is row place[i] of all, end to end."""
    if all(isinstance(values, Ragged) for values in parts):
        return interleave_ragged(place, parts)
    if all(isinstance(values, np.ndarray) for values in parts):
        return np.concatenate(parts)[place]
    rows = list(chain.from_iterable(parts))
    return [rows[at] for at in place.tolist()]


def interleave_ragged(place: Ints, parts: Sequence[Ragged]) -> Ragged:
    """Put the rows of several ragged columns in order, in one copy."""
    kind = np.result_type(*(ragged.values for ragged in parts))
    shape = parts[0].values.shape[1:]
    each = prod(shape)
    flat = [np.ascontiguousarray(ragged.values, kind) for ragged in parts]
    starts = [
        values.__array_interface__["data"][0] + ragged.offsets[:-1] * (kind.itemsize * each)
        for values, ragged in zip(flat, parts, strict=True)
    ]
    lengths = np.concatenate([ragged.lengths for ragged in parts])[place]
    values = gather_at(np.concatenate(starts)[place], kind, lengths * each)
    return Ragged(values.reshape(-1, *shape), offsets_of(lengths))
