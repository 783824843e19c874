"""The strategies give what they say."""

import json

from hypothesis import given
from hypothesis import strategies as st

from thalweg.testing import strategies as ts


@given(ts.lengths(8), ts.lengths(8, overlong=True))
def test_lengths_stay_within_the_capacity_unless_asked(short, long):
    assert short.dtype == long.dtype == "int32"
    assert (short <= 8).all()
    assert (short >= 0).all()
    assert (long <= 24).all()


@given(ts.documents())
def test_documents_have_ids_of_their_own_and_can_be_written(documents):
    assert len({d.id for d in documents}) == len(documents)
    for document in documents:
        document.text.encode("utf-8")
        json.dumps(document.metadata)


@given(st.integers(0, 50).flatmap(lambda n: st.tuples(st.just(n), ts.chains(n), ts.stop_points(n))))
def test_chains_add_up_and_stop_points_lie_inside(made):
    n, chain, stop = made
    assert sum(steps for steps, _ in chain) == n
    assert all(world >= 1 for _, world in chain)
    assert 0 <= stop <= n
