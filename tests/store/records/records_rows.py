"""Rows for the tests of records, and equality that sees types, key order and the sign of zero."""

import math

import numpy as np


def equal(a, b):
    """Whether two values are the same in type and content, down to the sign of zero."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray | np.generic):
        if a.dtype != b.dtype or a.shape != b.shape:
            return False
        return np.asarray(a).tobytes() == np.asarray(b).tobytes()
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    return a == b


def token_rows(n, seed=0, mean=40):
    """Make token samples as they lie at rest."""
    rng = np.random.default_rng(seed)
    out = []
    for i in range(n):
        ids = rng.integers(0, 150_000, int(rng.integers(0, 2 * mean))).astype(np.int32)
        spans = np.array([[0, len(ids) // 2], [len(ids) // 2, len(ids)]], np.int32)[: int(rng.integers(0, 3))]
        out.append(
            {
                "input_ids": ids,
                "loss_spans": spans,
                "id": f"doc-{seed}-{i}",
                "source": "web",
                "unit": "a.jsonl",
                "row": i,
            }
        )
    return out
