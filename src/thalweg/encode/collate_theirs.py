"""Collators of transformers and TRL: what they are given.

They were written for datasets of lists: they join two columns with `+`, which adds arrays. Decides which functions
are theirs and that they get lists; any other function gets numpy arrays.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from thalweg.core.sample import Sample

_THEIRS = frozenset({"transformers", "trl"})


def is_theirs(fn: Callable[..., Any]) -> bool:
    """Say whether a function, or a class that a collator comes from, is of transformers or TRL."""
    kind: type[Any] = type(fn)
    owners = [getattr(fn, "__module__", None), *(base.__module__ for base in kind.__mro__)]
    return any(str(owner).partition(".")[0] in _THEIRS for owner in owners)


def collate_by(fn: Callable[..., Any], samples: Sequence[Sample]) -> dict[str, Any]:
    """Call a collate function on samples.

    Args:
        fn: list of dicts -> dict.
        samples: dicts of numpy arrays and plain values.
    """
    given: Any = list(samples)
    if is_theirs(fn):
        given = [
            {k: v.tolist() if isinstance(v, np.ndarray) and v.ndim < 2 else v for k, v in s.items()} for s in given
        ]
    return dict(fn(given))
