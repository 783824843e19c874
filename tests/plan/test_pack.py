"""Packing plans: exact cover, never above capacity, tokens in = tokens out + reported lost, the same every time."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thalweg.core.errors import ConfigError, InputError
from thalweg.plan import pack

ONE_BY_ONE = ("best_fit", "first_fit", "next_fit")


def spread(n, mean=299, seed=0):
    """Lengths like those of chats: lognormal, 1 to 4,096."""
    return np.clip(np.random.default_rng(seed).lognormal(np.log(mean) - 0.5, 1.0, n), 1, 4096).astype(np.int32)


def slow_best_fit(lengths, capacity, max_docs=None):
    """Oracle: one document at a time, longest first, to the fullest row with room (the fuller by residual)."""
    free, held = [], []
    for n in sorted(lengths, reverse=True):
        fits = [i for i in range(len(free)) if free[i] >= n and (max_docs is None or held[i] < max_docs)]
        if fits:
            i = min(fits, key=lambda i: free[i])
            free[i] -= n
            held[i] += 1
        else:
            free.append(capacity - n)
            held.append(1)
    return sorted(free)


def slow_first_fit(lengths, capacity):
    """Oracle: every row open for ever, each document to the first with room."""
    rows, free = [], []
    for i, n in enumerate(lengths):
        at = next((r for r in range(len(rows)) if free[r] >= n), None)
        if at is None:
            rows.append([])
            free.append(capacity)
            at = -1
        rows[at].append(i)
        free[at] -= n
    return rows


@st.composite
def problems(draw):
    align = draw(st.sampled_from([1, 1, 2, 4]))
    capacity = draw(st.integers(1, 12)) * 4
    lengths = draw(st.lists(st.integers(0, int(capacity * 1.4)), max_size=80))
    return np.array(lengths, np.int64), capacity, align, draw(st.sampled_from([None, None, 1, 3]))


# C21 C22 C23 E51
@given(problems(), st.sampled_from(ONE_BY_ONE), st.sampled_from(["drop", "truncate", "split", "alone"]))
@settings(max_examples=300, deadline=None)
def test_every_document_is_in_one_row_or_reported_lost(problem, policy, overlong):
    lengths, capacity, align, max_docs = problem
    got = pack.plan(lengths, capacity, policy=policy, overlong=overlong, align=align, max_docs=max_docs)
    tokens = got.rows.tokens(lengths)
    assert tokens.sum() + got.loss.tokens == lengths.sum()
    room = capacity if got.rows.capacities is None else got.rows.capacities
    sizes = -(-got.rows.piece_lengths(lengths) // align) * align
    aligned = np.add.reduceat(sizes, got.rows.offsets[:-1]) if len(got.rows) else sizes
    if overlong != "alone":
        assert (aligned <= room).all()
    assert (tokens > 0).all()
    assert max_docs is None or got.rows.documents.max(initial=0) <= max_docs
    fits = (lengths > 0) & (lengths <= capacity)
    kept = {"drop": fits, "alone": lengths > 0, "truncate": lengths > 0, "split": lengths > 0}[overlong]
    if overlong == "split":
        seen = dict.fromkeys(np.flatnonzero(kept), 0)
        for d, a, b in zip(got.rows.order, *(_pieces(got.rows, lengths)), strict=True):
            assert a % capacity == 0
            seen[d] += b - a
        assert seen == {i: lengths[i] for i in seen}
    elif capacity > 1 or overlong != "truncate":  # a row of one token trains nothing
        assert np.array_equal(np.sort(got.rows.order), np.flatnonzero(kept))


def _pieces(rows, lengths):
    if rows.pieces is None:
        return np.zeros(len(rows.order), int), lengths[rows.order]
    return rows.pieces.start, rows.pieces.stop


@given(st.lists(st.integers(1, 40), max_size=120), st.sampled_from([None, 2, 5]))
@settings(max_examples=200, deadline=None)
def test_best_fit_by_counts_equals_best_fit_one_by_one(lengths, max_docs):
    rows = pack.best_fit(np.array(lengths, np.int64), 40, max_docs=max_docs)
    if max_docs is None:
        assert sorted(40 - rows.tokens(lengths)) == slow_best_fit(lengths, 40)
    assert len(rows) == pack.count_best_fit(np.array(lengths, np.int64), 40, max_docs=max_docs)


# C34
@given(st.lists(st.integers(1, 40), max_size=200))
@settings(max_examples=200, deadline=None)
def test_first_fit_gives_each_document_to_the_first_row_with_room(lengths):
    assert [r.tolist() for r in pack.first_fit(np.array(lengths, np.int64), 40)] == slow_first_fit(lengths, 40)


def test_first_fit_grows_past_its_first_tree():
    lengths = np.array([3] * 3000 + [1] * 3000)
    rows = pack.first_fit(lengths, 4)
    assert len(rows) == 3000
    assert [r.tolist() for r in rows] == [[i, 3000 + i] for i in range(3000)]


# C20
@given(st.lists(st.integers(1, 40), max_size=120), st.sampled_from([None, 3]))
def test_next_fit_closes_a_row_when_the_next_document_does_not_fit(lengths, max_docs):
    rows = [r.tolist() for r in pack.next_fit(np.array(lengths, np.int64), 40, max_docs=max_docs)]
    assert [i for r in rows for i in r] == list(range(len(lengths)))
    for a, b in itertools.pairwise(rows):
        assert sum(lengths[i] for i in a) + lengths[b[0]] > 40 or len(a) == max_docs


@given(st.lists(st.integers(0, 30), max_size=60), st.integers(1, 20), st.sampled_from([None, 1, 2]))
def test_concat_split_gives_every_token_once_in_order(lengths, capacity, max_docs):
    rows = pack.concat_split(np.array(lengths, np.int64), capacity, max_docs=max_docs)
    want = [(d, i) for d, n in enumerate(lengths) for i in range(n)]
    start, stop = rows.pieces.start, rows.pieces.stop
    got = [(d, i) for d, a, b in zip(rows.order, start, stop, strict=True) for i in range(a, b)]
    assert got == want
    tokens = rows.tokens(lengths)
    assert (tokens <= capacity).all()
    if max_docs is None:
        assert (tokens[:-1] == capacity).all()
    else:
        assert rows.documents.max(initial=0) <= max_docs


@pytest.mark.parametrize("capacity", [4096, 32768])
def test_best_fit_is_within_a_hundredth_of_a_percent_of_the_lower_bound(capacity):
    lengths = spread(200_000)
    rows = pack.best_fit(lengths, capacity)
    bound = pack.lower_bound(int(lengths.sum()), capacity)
    assert len(rows) <= bound * 1.0001 + 1


def test_the_same_lengths_give_the_same_plan():
    lengths = spread(5000)
    for policy in ONE_BY_ONE:
        a, b = (pack.plan(lengths, 4096, policy=policy).rows for _ in range(2))
        assert np.array_equal(a.order, b.order)
        assert np.array_equal(a.offsets, b.offsets)


def test_several_row_lengths_fill_long_rows_before_short_ones():
    lengths = np.concatenate([np.full(10, 900), np.full(100, 90), np.full(30, 30)])
    rows = pack.plan(lengths, (100, 1000), policy="best_fit").rows
    assert set(rows.capacities.tolist()) == {100, 1000}
    assert (rows.tokens(lengths) <= rows.capacities).all()
    assert np.array_equal(np.sort(rows.order), np.arange(len(lengths)))
    assert (rows.tokens(lengths)[rows.capacities == 1000] > 900).all()


# K36 E50 C22
class TestLongerThanTheRow:
    lengths = np.array([13, 10, 11, 0, 1, 9, 10, 30])

    @pytest.mark.parametrize("policy", ONE_BY_ONE)
    def test_drop_counts_documents_and_tokens(self, policy):
        got = pack.plan(self.lengths, 10, policy=policy, overlong="drop")
        assert got.loss.reasons == {"empty": (1, 0), "overlong": (3, 54)}
        assert sorted(got.rows.order) == [1, 4, 5, 6]
        assert len(got.rows) == 3  # 10 fills a row exactly; 1 and 9 share one

    @pytest.mark.parametrize("policy", ONE_BY_ONE)
    def test_split_keeps_every_token_and_marks_the_pieces(self, policy):
        got = pack.plan(self.lengths, 10, policy=policy, overlong="split")
        assert got.loss.tokens == 0
        assert got.rows.tokens(self.lengths).max() == 10
        pieces = sorted(zip(got.rows.order, got.rows.pieces.start, got.rows.pieces.stop, strict=True))
        assert pieces[:3] == [(0, 0, 10), (0, 10, 13), (1, 0, 10)]
        assert pieces[-3:] == [(7, 0, 10), (7, 10, 20), (7, 20, 30)]

    def test_split_is_for_plain_text(self):
        with pytest.raises(ConfigError, match="answer without its question"):
            pack.plan(self.lengths, 10, overlong="split", label_tokens=np.minimum(self.lengths, 4))
        with pytest.raises(ConfigError, match="media"):
            pack.plan(self.lengths, 10, overlong="split", media_tokens=self.lengths // 2)

    # E24
    def test_truncation_keeps_a_trained_token_or_refuses_the_sample(self):
        first_label = np.array([11, 0, 3, 0, 0, 0, 0, 29])
        kept = lambda which, stop: np.maximum(stop - first_label[which], 0)
        got = pack.plan(self.lengths, 10, overlong="truncate", kept_labels=kept)
        assert sorted(got.rows.order) == [1, 2, 4, 5, 6]
        reasons = got.loss.reasons
        assert reasons["truncated"] == (1, 1)
        assert reasons["no token in the loss after truncation"] == (2, 43)
        assert got.rows.tokens(self.lengths).sum() + got.loss.tokens == self.lengths.sum()

    def test_truncation_never_cuts_through_media(self):
        got = pack.plan(self.lengths, 10, overlong="truncate", media_tokens=np.array([9, 0, 0, 0, 0, 0, 0, 0]))
        assert got.loss.reasons["overlong with media"] == (1, 13)
        assert 0 not in got.rows.order

    def test_alone_gives_a_long_document_a_row_of_its_own(self):
        got = pack.plan(self.lengths, 10, overlong="alone")
        assert got.rows.tokens(self.lengths).tolist()[-3:] == [13, 11, 30]
        assert got.rows.capacities.tolist()[-3:] == [13, 11, 30]

    def test_without_a_rule_the_share_is_named(self):
        with pytest.raises(ConfigError, match=r"3 of 8 documents \(64.3% of the tokens\).*document 0 with 13"):
            pack.plan(self.lengths, 10)
        with pytest.raises(InputError, match="3 of 8"):
            pack.plan(self.lengths, 10, overlong="error")

    def test_a_packer_refuses_a_document_above_the_capacity(self):
        for packer in (pack.best_fit, pack.first_fit, pack.next_fit):
            with pytest.raises(InputError, match="document 0 has 13 tokens"):
                packer(self.lengths, 10)


def test_wrong_words_name_the_right_ones():
    for wrong, right in (
        ({"policy": "bestfit"}, "best_fit"),
        ({"overlong": "trunc"}, "truncate"),
        ({"align": 3}, "multiple of align"),
        ({"policy": "concat_split", "overlong": "drop"}, "takes no overlong"),
        ({"policy": "first_fit", "capacity": (4, 8)}, "several row lengths"),
        ({"max_docs": 0}, "max_docs"),
    ):
        with pytest.raises(ConfigError, match=right):
            pack.plan(**{"lengths": [1, 2], "capacity": 8, **wrong})


def test_rows_can_be_taken_in_another_order():
    lengths = np.array([3, 9, 4, 7, 20])
    rows = pack.plan(lengths, 10, overlong="split").rows
    turned = rows.take(np.arange(len(rows))[::-1])
    assert [r.tolist() for r in turned] == [r.tolist() for r in rows][::-1]
    assert turned.tokens(lengths).tolist() == rows.tokens(lengths).tolist()[::-1]
    assert rows[-1].tolist() == rows[len(rows) - 1].tolist()
    with pytest.raises(IndexError):
        rows[len(rows)]
