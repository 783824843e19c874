"""Row numbers are hashed as the text that is their id."""

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from thalweg.store.records.hashing import of_row_numbers


# E35
@given(st.lists(st.integers(0, 10**8 + 1000), max_size=40))
@example([*(10**k - 1 for k in range(1, 9)), *(10**k for k in range(8))])
@example([10**8 - 1, 10**8, 10**12])
def test_the_hash_of_a_number_is_that_of_its_digits(numbers):
    found = of_row_numbers(np.array(numbers, np.int64))
    assert found.tolist() == [xxh3_64_intdigest(b"%d" % n) for n in numbers]
