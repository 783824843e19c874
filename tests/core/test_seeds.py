"""Random numbers depend on the key alone: not on who draws them, nor on the process."""

import os
import subprocess
import sys

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from thalweg.core import seeds

keys = st.lists(st.text() | st.integers() | st.booleans() | st.none() | st.floats(allow_nan=False), max_size=4).map(
    tuple
)


@given(keys, keys)
def test_equal_keys_and_only_they_give_equal_numbers(a, b):
    assert (seeds.digest(*a) == seeds.digest(*b)) == (repr(a) == repr(b))
    assert 0 <= seeds.key64(*a) < 2**64
    assert seeds.generator(*a).integers(2**63) == seeds.generator(*a).integers(2**63)


def test_a_number_its_text_and_a_truth_are_three_keys():
    assert len({seeds.digest(1), seeds.digest("1"), seeds.digest(True), seeds.digest(1.0)}) == 4


def test_a_part_more_or_a_part_joined_is_another_key():
    assert len({seeds.digest("a", "b"), seeds.digest("ab"), seeds.digest("a", "b", None), seeds.digest("a', 'b")}) == 4


# A50
def test_numbers_are_the_same_in_another_process_with_another_hash_seed():
    code = (
        "from thalweg.core import seeds as s; print(s.key64('web', 3), s.generator('web', 3).integers(1 << 40, size=3))"
    )
    seen = set()
    for seed in ("0", "1", "12345"):
        env = os.environ | {"PYTHONHASHSEED": seed}
        seen.add(
            subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout
        )
    assert len(seen) == 1


def test_numbers_do_not_change_between_versions_of_ours():
    """A run that began with an older version must go on in its order."""
    assert seeds.key64("web", 3) == 6927711839020938894
    assert seeds.generator("web", 3).integers(1000, size=4).tolist() == [255, 458, 737, 933]


def test_generators_of_different_keys_are_unrelated():
    draws = np.array([seeds.generator(0, i).random(200) for i in range(50)])
    assert abs(draws.mean() - 0.5) < 0.02
    correlations = np.corrcoef(draws)[~np.eye(50, dtype=bool)]
    assert np.abs(correlations).max() < 0.35
