"""Hypothesis strategies for what training data looks like where it hurts.

Decides which lengths, texts, documents and stop points are worth trying. Needs the package hypothesis.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.core.document import Document
from thalweg.core.extras import need

need("hypothesis", why="thalweg.testing.strategies")
from hypothesis import strategies as st  # noqa: E402 (after the message about a missing package)

# Text that broke readers, writers and tokenizers: line ends inside a line, byte-order mark, null, emoji of several code
# points, combining marks, a character beyond the basic plane, special tokens as plain text.
AWKWARD = [
    "",
    " ",
    "\n",
    "a\u2028b",
    "\ufeffx",
    "\x00",
    "👩‍👩‍👧",
    "e\u0301",
    "\U00032c91",
    "<|im_end|>",
    "\r\n",
    "\t",
    "字",
]


def lengths(
    capacity: int = 64, *, min_size: int = 0, max_size: int = 60, overlong: bool = False
) -> st.SearchStrategy[NDArray[np.int32]]:
    """Give token counts, int32 (n,), with many 0, 1, capacity - 1 and capacity; above it too where `overlong`."""
    edges = [0, 1, capacity - 1, capacity] + ([capacity + 1, 3 * capacity] if overlong else [])
    one = st.one_of(st.sampled_from([e for e in edges if e >= 0]), st.integers(0, capacity * (3 if overlong else 1)))
    return st.lists(one, min_size=min_size, max_size=max_size).map(lambda v: np.array(v, np.int32))


def texts() -> st.SearchStrategy[str]:
    """Give texts of any code point that UTF-8 can write, and the awkward ones often."""
    whole = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
    return st.one_of(st.sampled_from(AWKWARD), whole, st.lists(st.sampled_from(AWKWARD), max_size=4).map("".join))


def documents(*, min_size: int = 0, max_size: int = 20) -> st.SearchStrategy[list[Document]]:
    """Give lists of documents with ids of their own, awkward texts and JSON-like metadata."""
    values: st.SearchStrategy[Any] = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**53), 2**53),
        st.floats(allow_nan=False, allow_infinity=False),
        texts(),
    )
    parts = st.tuples(texts(), st.dictionaries(st.sampled_from(["url", "score", "lang"]), values, max_size=3))
    return st.lists(parts, min_size=min_size, max_size=max_size).map(
        lambda rows: [Document(text, f"doc/{i}", [], dict(meta)) for i, (text, meta) in enumerate(rows)]
    )


def chains(n: int, *, max_legs: int = 5) -> st.SearchStrategy[list[tuple[int, int]]]:
    """Give legs of a job over n steps: (steps of this leg, world size), steps adding up to n, 1 to 8 ranks."""
    cuts = st.lists(st.integers(0, n), max_size=max_legs - 1).map(sorted)
    return cuts.flatmap(
        lambda c: st.tuples(
            *(
                st.tuples(st.just(b - a), st.sampled_from([1, 2, 3, 4, 6, 8]))
                for a, b in zip([0, *c], [*c, n], strict=True)
            )
        )
    ).map(list)


def stop_points(n: int) -> st.SearchStrategy[int]:
    """Give places to stop among n items: before the first and after the last often."""
    return st.one_of(st.sampled_from([0, min(1, n), max(0, n - 1), n]), st.integers(0, n))
