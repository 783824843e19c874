"""A cache in memory: samples behind functions, made once in a process and held as long as the feed lives.

Decides when held samples are still right (same data, same code) and what happens when they do not fit: an error with
both numbers, never a silent second tokenising.
"""

from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from thalweg.core.errors import ConfigError
from thalweg.core.sample import INPUT_IDS, LABELS, Sample
from thalweg.core.sizes import to_bytes
from thalweg.core.state import digest
from thalweg.feed import stages as st
from thalweg.feed.held import Held, bytes_of
from thalweg.feed.mapped import Leaf

AT_ONCE = 1024  # samples made between two looks at the memory
_HELD: "WeakKeyDictionary[st.Cache, tuple[str, Held]]" = WeakKeyDictionary()


def remembered(leaf: Leaf, stage: st.Cache) -> Leaf:
    """Give the leaf behind a cache in memory.

    Raises:
        ConfigError: the samples take more than `max_bytes`.
    """
    key = digest(["memory", leaf.source.fingerprint, leaf.code()], size=16)
    found = _HELD.get(stage)
    if found is None or found[0] != key:
        found = _HELD[stage] = (key, _made(leaf, stage, key))
    return Leaf(leaf.name, found[1], [], leaf.filters, leaf.shuffle, leaf.repeats)


def _made(leaf: Leaf, stage: st.Cache, key: str) -> Held:
    assert stage.max_bytes is not None
    limit, used, n = to_bytes(stage.max_bytes), 0, len(leaf.source)
    ids: list[str] = []
    rows: list[Sample] = []
    for start in range(0, n, AT_ONCE):
        for name, sample in leaf.outputs(np.arange(start, min(start + AT_ONCE, n))):
            ids.append(name)
            rows.append(compact(sample))
            used += bytes_of(rows[-1])
        if used > limit:
            at = min(start + AT_ONCE, n)
            raise ConfigError(
                f"{at:,} of {n:,} samples take {used:,} bytes, all about {used * n // at:,}, and max_bytes allows "
                f"{limit:,}",
                where=str(stage),
                fix='leave max_bytes out: records on disk are mapped, not loaded; or scope="rank"',
            )
    return Held(rows, ids, leaf.source.lineage, key)


def compact(sample: Mapping[str, Any]) -> Sample:
    """Give a sample whose token columns are small arrays instead of lists."""
    out = dict(sample)
    for name, dtype in ((INPUT_IDS, np.int32), (LABELS, np.int64)):
        value = out.get(name)
        if isinstance(value, list | tuple) and value and all(isinstance(v, int) for v in value):
            out[name] = np.array(value, dtype)
    return out
