"""Units are dealt once each, and cut without a gap."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thalweg.core.errors import ConfigError
from thalweg.plan.shard import cut, deal


# D7
@given(st.integers(0, 200), st.integers(1, 40))
def test_ranks_are_disjoint_and_cover_everything(n, world):
    units = list(range(n))
    shares = [deal(units, rank, world) for rank in range(world)]
    assert sorted(u for share in shares for u in share) == units
    assert all(share == units[rank::world] for rank, share in enumerate(shares))


# D9
@given(st.integers(0, 10**5), st.integers(50, 10**5))
def test_ranges_cover_a_file_without_gap_and_none_is_too_large(size, unit_bytes):
    ranges = cut(size, unit_bytes)
    assert ranges[0][0] == 0
    assert ranges[-1][1] == size
    assert all(a[1] == b[0] for a, b in pairwise(ranges))
    assert max(b - a for a, b in ranges) <= unit_bytes
    assert len(ranges) == max(1, -(-size // unit_bytes))


def test_a_rank_outside_the_world_is_refused():
    with pytest.raises(ConfigError, match="world size 3"):
        deal([1], 3, 3)
    with pytest.raises(ConfigError, match="unit_bytes"):
        cut(10, 0)
