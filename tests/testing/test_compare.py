"""Where two values differ first, for everything that flows."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thalweg.core.batch import Batch, BatchInfo
from thalweg.core.errors import InputError
from thalweg.core.sample import Ragged
from thalweg.testing import difference


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        (1, 1.0, "1 against 1.0"),
        (np.arange(3), np.arange(4), "(3,) against int64 (4,)"),
        (np.arange(3, dtype=np.int32), np.arange(3), "int32 (3,) against int64 (3,)"),
        ({"a": [1, 2]}, {"a": [1, 3]}, "value['a'][1]: 2 against 3"),
        ({"a": 1}, {"b": 1}, "keys ['a'] against ['b']"),
        ([1], [1, 2], "1 items against 2"),
        ((1,), [1], "(1,) against [1]"),
        (ValueError("x"), ValueError("y"), "ValueError('x') against ValueError('y')"),
        (np.zeros((2, 2)), np.eye(2), "value[0, 0]: 0.0 against 1.0, 2 elements differ"),
        (Ragged.from_rows([[1], [2]], np.int32), Ragged.from_rows([[1, 2], []], np.int32), "['offsets'][1]"),
    ],
)
def test_the_first_difference_is_named_with_its_place(a, b, words):
    assert words in difference(a, b)


def test_batches_differ_by_info_too():
    batch = Batch({"input_ids": np.zeros((1, 2))}, info=BatchInfo(step=3))
    other = Batch(batch, info=replace(batch.info, step=4))
    assert difference(batch, Batch(batch, info=replace(batch.info))) is None
    assert difference(batch, other) == "value.info['step']: 3 against 4"


def test_nan_equals_nan_and_errors_compare_by_type_and_message():
    assert difference(float("nan"), float("nan")) is None
    assert difference(np.array([np.nan, 1]), np.array([np.nan, 1])) is None
    assert difference(InputError("x", where="y"), InputError("x", where="y")) is None
    assert difference(InputError("x"), ValueError("x")) is not None


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3) | st.tuples(inner, inner),
    max_leaves=8,
)


@given(values, values)
def test_difference_is_symmetric_and_finds_nothing_in_the_same_value(a, b):
    assert difference(a, a) is None
    assert (difference(a, b) is None) == (difference(b, a) is None)


def test_tensors_compare_like_arrays():
    torch = pytest.importorskip("torch")
    a = torch.tensor([[1, 2]])
    assert difference(a, a.clone()) is None
    assert "value[0, 1]: 2 against 9" in difference(a, torch.tensor([[1, 9]]))
    half = torch.tensor([0.5], dtype=torch.bfloat16)
    assert difference(half, half.clone()) is None
