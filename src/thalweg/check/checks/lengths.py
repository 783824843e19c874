"""Checks of lengths: what was cut, what is too long, which shapes batches have, and what padding costs.

Decides from which share on a length is worth a word, and works out what buckets or packing would save.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from thalweg.check.checks.check import Check, fine, graver
from thalweg.check.evidence import Evidence
from thalweg.check.finding import Finding
from thalweg.plan import pack
from thalweg.plan.batch import bucket, padding_share

WASTE = 0.25  # share of padding from which it is worth a change
MANY = 16  # shapes of batches from which compilers and allocators suffer
OUTLIER = 4.0  # times the median width
TAIL = 3  # last tokens of a sample among which its end token stands: templates write a line break behind it
PILE = 0.05  # share of samples at exactly the largest length that smells of truncation
MOST = 100_000  # lengths that are packed to work out a saving


def truncation(e: Evidence) -> Finding | None:
    """See how many samples were cut, and whether the cut took answers."""
    some = [s for s in e.documents if len(s.ids)]
    if len(some) < 2:
        return None
    limit = e.max_length or max(len(s.ids) for s in some)
    at = [s for s in some if len(s.ids) == limit]
    ends = _ends(e)
    whole = [s for s in at if any(int(t) in ends for t in s.ids[-TAIL:])]
    if e.max_length is None and (len(at) < max(2, PILE * len(some)) or len(whole) > 0.5 * len(at)):
        return fine("no length at which samples pile up without their end", longest=limit)
    if not at:
        return fine("no sample reaches the length limit", limit=limit)
    below = [s for s in some if len(s.ids) < limit]
    elsewhere = sum(not s.trained.any() for s in below) > 0.5 * len(below) if below else False
    lost = [s for s in at if not s.trained.any() and not elsewhere]  # untrained everywhere: not the cut's fault
    cut = [s for s in at if s.trained.any() and ends and int(s.ids[-1]) not in ends and s.trained[-1]]
    share = len(at) / len(some)
    numbers = {"length": limit, "without an answer": len(lost), "answers cut": len(cut)}
    fix = "raise max_length, drop what is too long, or split plain text"
    if e.max_length is None and not ends and not lost:  # a pile that may be meant: nothing says where a sample ends
        what = "samples pile up at the greatest length, and no end token is known here"
        fix = "say tokenizer= (--tokenizer), or max_length= (--max-length) where they were cut"
        return Finding("note", what, len(at), len(some), at[0].name, fix, numbers={"length": limit})
    level = "error" if len(lost) > 0.01 * len(some) else graver(share, error=1.1, warning=PILE)
    return Finding(level, "samples are cut at the limit", len(at), len(some), at[0].name, fix, numbers=numbers)


def _ends(e: Evidence) -> frozenset[int]:
    """Give the ids that end a sample: the tokenizer's, else the commonest last token where most samples have it."""
    if e.words is not None and e.words.ends:
        return e.words.ends
    last = Counter(int(s.ids[-1]) for s in e.documents if len(s.ids))
    token, n = last.most_common(1)[0]
    return frozenset({token}) if n > 0.5 * last.total() else frozenset()


def longer_than_a_row(e: Evidence) -> Finding | None:
    """Count samples that are longer than a packed row, and say what becomes of them."""
    if e.capacity is None or e.lengths is None or not len(e.lengths):
        return None
    over = np.asarray(e.lengths) > e.capacity
    count, of = int(over.sum()), len(over)
    if not count:
        return fine("every sample fits into a row", capacity=e.capacity, longest=int(np.max(e.lengths)))
    tokens = float(np.asarray(e.lengths, np.int64)[over].sum() / max(np.sum(e.lengths, dtype=np.int64), 1))
    numbers = {"share of tokens": f"{tokens:.1%}", "overlong": e.overlong or "refused"}
    fix = 'a larger capacity, or overlong="split" for plain text'
    level = graver(tokens, error=0.5, warning=0.05) if e.overlong in {"drop", "truncate"} else "note"
    return Finding(level, "samples are longer than a row", count, of, None, fix, numbers=numbers)


def shapes_of_batches(e: Evidence) -> Finding | None:
    """List the shapes of batches: many shapes, or a few far outliers, cost recompiling and memory."""
    if not e.shapes:
        return None
    counts = Counter(e.shapes)
    widths = np.array([w for _, w in e.shapes])
    far = int((widths > OUTLIER * np.median(widths)).sum())
    common = {f"{b}x{w}": n for (b, w), n in counts.most_common(5)}
    numbers = {"shapes": len(counts), "batches": len(e.shapes), "widest": int(widths.max()), "commonest": common}
    if far:
        edge = int(OUTLIER * np.median(widths))
        fix = f"give outliers a bucket of their own, or filter them before: .filter(lambda n: n <= {edge}, ['length'])"
        what = f"far wider than the rest: {far} of {len(widths)} batches"
        return Finding("warning", what, fix=fix, numbers=numbers)
    if len(counts) > MANY and len(counts) > 0.5 * len(e.shapes):
        fix = f'{_rounded(e.shapes)}.pack(...); or .bucket(..., pad_to="boundary")'
        return Finding("warning", "nearly every batch has a shape of its own", fix=fix, numbers=numbers)
    return fine("few shapes", **numbers)


def _rounded(shapes: Sequence[tuple[int, int]]) -> str:
    """Name the least multiple to pad to that leaves few shapes; "" where none does, as rows differ too."""
    for multiple in (8, 16, 32, 64, 128, 256):
        left = len({(rows, -(-width // multiple)) for rows, width in shapes})
        if left <= MANY:
            return f"pad_to_multiple_of={multiple} leaves {left}; or "
    return ""


def padding_wasted(e: Evidence) -> Finding | None:
    """Say what share of all places is padding, and what buckets or packing would leave."""
    if not e.shapes or not e.rows or e.lengths is None or not len(e.lengths):
        return None
    places = sum(len(r.ids) for r in e.rows)  # rows that only fill a last batch up are none
    real = sum(b - a for r in e.rows for a, b in r.edges)
    waste = 1 - real / places if places else 0.0
    lengths = np.asarray(e.lengths, np.int64)[:MOST]
    lengths = lengths[lengths > 0]
    height = max(b for b, _ in e.shapes)
    numbers: dict[str, object] = {"padding": f"{waste:.1%}"}
    if waste <= WASTE or not len(lengths):
        return fine("little padding", **numbers)
    longest = int(lengths.max())
    numbers["padded to the longest of all"] = f"{padding_share(lengths, to=longest):.1%}"
    edges, bucketed = _bucketed(lengths, height)
    numbers["with buckets"] = f"{bucketed:.1%}"
    capacity = max(longest, int(np.median(lengths)) * 8)
    numbers["packed"] = f"{_packed(lengths, capacity):.1%}"
    fix = f".pack({capacity}), or .bucket({edges}, {[height] * (len(edges) + 1)})"
    return Finding("warning", "much of every batch is padding", fix=fix, numbers=numbers)


def _bucketed(lengths: np.ndarray[tuple[int], np.dtype[np.int64]], height: int) -> tuple[list[int], float]:
    """Give boundaries, and the share of padding in batches of one height whose samples share an eighth of lengths."""
    edges = sorted({int(v) for v in np.quantile(lengths, np.arange(1, 9) / 8)})
    made = bucket(lengths, edges, [height] * (len(edges) + 1), remainder="keep")
    return edges, 1 - float(lengths.sum()) / max(made.padded_tokens, 1)


def _packed(lengths: np.ndarray[tuple[int], np.dtype[np.int64]], capacity: int) -> float:
    rows = pack.best_fit(lengths, capacity)
    return 1 - float(lengths.sum()) / max(len(rows) * capacity, 1)


def lengths_of_one_order(e: Evidence) -> Finding | None:
    """Find lengths so far apart that memory is decided by a single sample."""
    if e.lengths is None or len(e.lengths) < 20 or e.capacity is not None or not e.shapes:
        return None
    low, high = np.percentile(e.lengths, [50, 100])
    spread = float(high / max(low, 1))
    if spread <= 20:
        return fine("lengths are of one order", median=int(low), longest=int(high))
    fix = ".pack(...) or .token_budget(...): memory is then the same in every step"
    numbers = {"median": int(low), "longest": int(high)}
    return Finding("warning", "the longest sample is many times the median", fix=fix, numbers=numbers)


CHECKS = (
    Check("truncation", "lengths", truncation),
    Check("longer than a row", "lengths", longer_than_a_row),
    Check("shapes of batches", "lengths", shapes_of_batches),
    Check("padding wasted", "lengths", padding_wasted),
    Check("lengths of one order", "lengths", lengths_of_one_order),
)
