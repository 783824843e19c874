"""Looking ahead moves nothing, and what was met there comes at its place."""

from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import thalweg as tw
from thalweg.feed.lookahead import Lookahead


@given(st.integers(0, 12), st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=30))
def test_items_come_in_their_order_whatever_is_looked_at(n, asked):
    ahead, got = Lookahead(iter(range(n))), []
    for pop, k in asked:
        rest = list(range(len(got), n))
        assert ahead.coming(k) == rest[:k]
        if pop and rest:
            assert ahead.peek() == rest[0]
            got.append(ahead.pop())
    while True:
        try:
            got.append(ahead.pop())
        except StopIteration:
            break
    assert got == list(range(n))


def test_an_error_comes_behind_the_items_before_it_each_time_it_is_asked_for():
    def items():
        yield 1
        yield 2
        raise OSError("disk")

    ahead = Lookahead(items())
    assert ahead.coming(5) == [1, 2]
    assert [ahead.pop(), ahead.pop()] == [1, 2]
    for _ in range(2):
        with pytest.raises(OSError, match="disk"):
            ahead.peek()
    ahead.close()


def feeds():
    data = [{"input_ids": np.full(1 + i % 5, i, np.int32)} for i in range(40)]
    return {
        "planned": tw.from_dataset(data).shuffle().pack(8, overlong="drop").batch(1),
        "stream": tw.from_stream(data).shuffle(buffer_size=7).pack(8, policy="fill", overlong="drop").batch(1),
    }


@pytest.mark.parametrize("kind", ["planned", "stream"])
@pytest.mark.parametrize("workers", [0, 1])
def test_batches_seen_ahead_change_no_state_step_or_order(kind, workers):  # K28
    def loader():
        return tw.Loader(
            feeds()[kind], gradient_accumulation_steps=2, return_tensors="np", workers=workers, epochs=2, seed=5
        )

    plain = loader()
    expected = [(b["input_ids"].tolist(), b.info.step, plain.state_dict(), plain.step) for b in plain]
    looking, got, seen = loader(), [], 0
    for b in looking:
        coming = looking.node.coming(5)
        seen = max(seen, len(coming))
        wanted = [ids for ids, *_ in expected[len(got) + 1 :]]
        assert [c["input_ids"].tolist() for c in coming] == wanted[: len(coming)]
        got.append((b["input_ids"].tolist(), b.info.step, looking.state_dict(), looking.step))
    assert got == expected
    assert seen == 5 or kind == "stream"
    looking.close()


def test_a_for_that_is_broken_off_at_its_end_starts_anew_though_the_end_was_seen():  # K32
    loader = tw.Loader(feeds()["planned"], return_tensors="np")
    first = [b["input_ids"].tolist() for b in loader]
    again = tw.Loader(feeds()["planned"], return_tensors="np")
    it = iter(again)
    list(islice(it, len(first) - 1))
    assert len(again.node.coming(5)) == 1  # the end is behind it
    assert [b["input_ids"].tolist() for b in again] == first
