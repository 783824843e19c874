"""Checks of labels and masks: what the model is asked to predict, and what it may look at.

Decides what a label or a mask must be. Rows of batches are judged where there are some, for they are what the model
gets; else samples. How much of a conversation is trained is the business of `loss`.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from thalweg.check.checks.check import Check, among, fine, graver
from thalweg.check.evidence import Evidence, Row, Segment
from thalweg.check.finding import Finding
from thalweg.core.sample import IGNORE_INDEX

MOST = 0.9  # share of labels that must stand one beside their token to speak of a shift
FEW = 0.1  # share of rows that end in a run of one id, up to which it is no padding
NO_PAD = -1  # rows end in runs of many tokens: such is text
LEAST = 8  # labels of a sample below which nothing is said of a shift


def equal_lengths(e: Evidence) -> Finding | None:
    """See that ids, labels and mask of a sample are equally long, and that spans of the loss lie inside the ids."""
    if not e.documents or all(s.labels is None and s.attention is None for s in e.documents):
        return None
    count, of, first = among(s.beyond for s in e.documents)
    if count:
        s = e.documents[first]
        what = f"spans of the loss go beyond their tokens; the first: {list(s.beyond[0])} over {len(s.ids):,} tokens"
        fix = "write spans with 0 <= start <= end <= number of tokens"
        return Finding("error", what, count, of, s.name, fix)
    count, of, first = among(
        any(v is not None and len(v) != len(s.ids) for v in (s.labels, s.attention)) for s in e.documents
    )
    if not count:
        return fine("ids, labels and masks are equally long")
    s = e.documents[first]
    numbers = {n: len(v) for n, v in (("ids", s.ids), ("labels", s.labels), ("mask", s.attention)) if v is not None}
    fix = "cut or extend all three together"
    return Finding("error", "ids, labels and mask differ in length", count, of, s.name, fix, numbers=numbers)


def labels_inside_the_vocabulary(e: Evidence) -> Finding | None:
    """Find labels that are no token: the loss reads beside its table."""
    rows = e.embedding or (e.words.size if e.words else None)
    marked = [s for s in e.judged if s.labels is not None and len(s.labels)]
    if not marked:
        return None

    def wrong(labels: NDArray[np.int64]) -> bool:
        used = labels[labels != IGNORE_INDEX]
        return bool(len(used) and (used.min() < 0 or (rows is not None and used.max() >= rows)))

    count, of, first = among(wrong(s.labels) for s in marked if s.labels is not None)
    if not count:
        return None if rows is None else fine("labels are tokens of the vocabulary or -100")
    labels = marked[first].labels
    assert labels is not None
    used = labels[labels != IGNORE_INDEX]
    worst = int(used.min()) if used.min() < 0 else int(used.max())
    fix = "off the loss say -100; else take labels from input_ids"
    return Finding("error", f"label {worst:,} is no token", count, of, marked[first].name, fix)


def labels_not_shifted(e: Evidence) -> Finding | None:
    """Find labels that stand one beside where the batch says: the model learns to copy, or to skip a token."""
    marked = [s for s in e.judged if s.labels is not None and len(s.labels) == len(s.ids)]
    shares = [p for p in map(_places, marked) if p is not None]
    if not shares:
        return None
    found = np.array(shares)  # at its place, one to the left, one to the right
    count, of, first = among(((found[:, 1:].max(axis=1) > MOST) & (found[:, 0] < 1 - MOST)).tolist())
    if not count:
        return fine("labels stand at their tokens")
    side = "left" if found[first, 1] > found[first, 2] else "right"
    where = marked[first].name
    what = f"labels stand one token too far to the {side}"
    fix = "Hugging Face models shift by themselves: give labels unshifted; Megatron and torchtitan want them shifted"
    return Finding("error", what, count, of, where, fix)


def _places(s: Segment) -> tuple[float, float, float] | None:
    """Say which share of a segment's labels equals its token, the next one and the one before."""
    assert s.labels is not None
    at = np.flatnonzero(s.labels != IGNORE_INDEX)
    at = at[(at > 1) & (at < len(s.ids) - 2)]
    if len(at) < LEAST:
        return None
    move = 1 if s.shifted else 0
    labels = s.labels[at]
    return tuple(float((labels == s.ids[at + move + d]).mean()) for d in (0, 1, -1))  # type: ignore[return-value]


def labels_are_their_tokens(e: Evidence) -> Finding | None:
    """Find labels that are neither their token nor a shift of them."""
    marked = [s for s in e.judged if s.labels is not None and len(s.labels) == len(s.ids)]
    if not marked:
        return None
    wrong = [_strangers(s) for s in marked]
    count, of, first = among(wrong)
    if not count:
        return fine("every label is the token that it stands for")
    total = sum(wrong)
    fix = "take labels from input_ids; an end token must stand in the tokens to be learned"
    return Finding(
        graver(count / of, error=0.01), "labels are other tokens than those of the text", count, of,
        marked[first].name, fix, numbers={"labels": total},
    )  # fmt: skip


def _strangers(s: Segment) -> int:
    assert s.labels is not None
    if s.shifted:
        labels, tokens = s.labels[:-1], s.ids[1:]
    else:
        labels, tokens = s.labels, s.ids
    wrong = (labels != IGNORE_INDEX) & (labels != tokens)
    if len(labels) > LEAST and wrong.sum() > 0.5 * max((labels != IGNORE_INDEX).sum(), 1):
        return 0  # a shift, or another text: said elsewhere
    return int(wrong.sum())


def mask_ends_at_padding(e: Evidence) -> Finding | None:
    """Find attention masks of ones over padding."""
    rows = [r for r in e.rows if r.attention is not None]
    if not rows:
        rows = [Row(s.ids, s.labels, s.attention, None, ()) for s in e.documents if s.attention is not None]
    if not rows:
        return None
    known = e.words.pad if e.words is not None else None
    pad = _pad_of(rows) if known is None else known
    padded = [_padding(r, pad) for r in rows]
    if not any(padded):
        return fine("no row has padding under a mask of ones")
    count, of, _ = among(n and _all_on(r, n) for r, n in zip(rows, padded, strict=True))
    if not count:
        return fine("masks end where padding begins", padded_rows=sum(map(bool, padded)))
    fix = "make the mask from lengths: 1 on real tokens, 0 on padding"
    return Finding("error", "attention masks are 1 over padding", count, of, "rows", fix)


def _pad_of(rows: Sequence[Row]) -> int:
    """Guess the padding id where no tokenizer tells it: the one that many rows, and nearly all in a run, end in."""
    last = Counter(int(r.ids[-1]) for r in rows if len(r.ids) > 2 and r.ids[-1] == r.ids[-2])
    most = last.most_common(1)
    return most[0][0] if most and most[0][1] > max(MOST * last.total(), FEW * len(rows)) else NO_PAD


def _padding(row: Row, pad: int) -> int:
    """Count the tokens of padding at the end of a row: one id over and over, never in the loss."""
    ids = row.ids
    if len(ids) < 3 or ids[-1] != pad:
        return _padding_left(row, pad)
    same = len(ids) - int(np.flatnonzero(np.append(True, ids != ids[-1]))[-1])
    if row.labels is not None and len(row.labels) == len(ids):
        used = np.flatnonzero(row.labels != IGNORE_INDEX)
        same = min(same, len(ids) - 1 - int(used[-1])) if len(used) else same
    return same if same >= 2 else 0


def _padding_left(row: Row, pad: int) -> int:
    if len(row.ids) < 3 or row.ids[0] != pad or row.ids[1] != pad:
        return 0
    return int(np.flatnonzero(np.append(row.ids, -1) != pad)[0])


def _all_on(row: Row, padding: int) -> bool:
    assert row.attention is not None
    at_end = row.attention[-padding:] if _padding(row, int(row.ids[-1])) else row.attention[:padding]
    return bool((at_end != 0).all())


def mask_hides_no_token(e: Evidence) -> Finding | None:
    """Find attention masks of 0 on tokens that are in the loss or stand between others."""
    rows = [r for r in e.rows if r.attention is not None]
    if not rows:
        return None

    def hides(r: Row) -> bool:
        assert r.attention is not None
        on = np.flatnonzero(r.attention)
        inside = len(on) and bool((r.attention[on[0] : on[-1]] == 0).any())
        used = np.zeros(len(r.ids), bool) if r.labels is None else r.labels != IGNORE_INDEX
        if r.shifted:
            used = np.append(False, used[:-1])
        return bool(inside or (r.attention[used] == 0).any())

    count, of, first = among(map(hides, rows))
    if not count:
        return fine("no token in the loss is hidden by its mask")
    fix = "make the mask from lengths, not from ids != pad_id: the padding id is a real token here"
    return Finding("error", "attention masks are 0 on real tokens", count, of, f"row {first}", fix)


def documents_are_apart(e: Evidence) -> Finding | None:
    """Find packed rows whose mask of ones lets documents see each other."""
    packed = [r for r in e.rows if len(r.edges) > 1]
    if not packed:
        return None

    def leaks(r: Row) -> bool:
        if r.attention is not None:
            return int(r.attention.max(initial=0)) <= 1
        return r.positions is None

    count, of, first = among(map(leaks, packed))
    if not count:
        return fine("packed documents cannot see each other", rows=of)
    fix = "give position_ids that restart and no attention_mask (with use_cache=False), or cu_seq_lens"
    return Finding("error", "packed documents see each other", count, of, f"row {first}", fix)


def documents_begin_untrained(e: Evidence) -> Finding | None:
    """Find packed rows in which the last token of a document is asked for the first of the next."""
    later = [s for s in e.in_rows if not s.first and s.labels is not None and len(s.ids)]
    if not later:
        return None
    if any(s.shifted for s in later):
        return _last_labels(e)
    count, of, first = among(s.labels is not None and s.labels[0] != IGNORE_INDEX for s in later)
    if not count:
        return fine("the first token of each packed document is off the loss", documents=of)
    fix = "set labels to -100 where position_ids are 0"
    what = "the first tokens of packed documents are in the loss: they are predicted from another document"
    return Finding("error", what, count, of, later[first].name, fix)


def _last_labels(e: Evidence) -> Finding:
    """The same for labels that stand one to the left: the last place of a document has none."""
    inner = [
        s for s, after in zip(e.in_rows, [*e.in_rows[1:], None], strict=True)
        if after is not None and after.row == s.row and s.labels is not None and len(s.labels)
    ]  # fmt: skip
    count, of, first = among(s.labels is not None and s.labels[-1] != IGNORE_INDEX for s in inner)
    if not count:
        return fine("no document is asked for the first token of the next", documents=of)
    fix = "set the label of each document's last place to -100"
    return Finding(
        "error", "packed documents are asked for the first token of the next", count, of, inner[first].name, fix
    )


def padding_side(e: Evidence) -> Finding | None:
    """Compare the side of padding with the kind of model, and positions with the padding."""
    padded = [r for r in e.rows if r.attention is not None and (r.attention == 0).any() and len(r.edges) <= 1]
    if not padded:
        return None
    left = [r for r in padded if r.attention is not None and r.attention[0] == 0]
    if left and e.model_kind == "encoder-decoder":
        fix = 'say pad="right"'
        return Finding("error", "rows for an encoder-decoder are padded on the left", len(left), len(padded), None, fix)
    if len(left) < len(padded) and e.generating:
        fix = 'say pad="left": generation goes on from the last position'
        what = "prompts to be continued are padded on the right"
        return Finding("error", what, len(padded) - len(left), len(padded), None, fix)
    count, of, _ = among(not _starts_at_zero(r) for r in left)
    if count:
        fix = "count position_ids from the first real token"
        return Finding("error", "rows padded on the left count positions from the padding", count, of, None, fix)
    return fine("the padding side fits", left=len(left), right=len(padded) - len(left))


def _starts_at_zero(row: Row) -> bool:
    assert row.attention is not None
    if row.positions is None:
        return False
    return int(row.positions[int(np.flatnonzero(row.attention)[0])]) == 0 if row.attention.any() else True


CHECKS = (
    Check("equal lengths", "masks", equal_lengths),
    Check("labels inside the vocabulary", "masks", labels_inside_the_vocabulary),
    Check("labels not shifted", "masks", labels_not_shifted),
    Check("labels are their tokens", "masks", labels_are_their_tokens),
    Check("mask ends at padding", "masks", mask_ends_at_padding),
    Check("mask hides no token", "masks", mask_hides_no_token),
    Check("documents are apart", "masks", documents_are_apart),
    Check("documents begin untrained", "masks", documents_begin_untrained),
    Check("padding side", "masks", padding_side),
)
