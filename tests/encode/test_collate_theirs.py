"""Collators of transformers and TRL get lists, all others arrays."""

import numpy as np
import pytest

import thalweg as tw
from thalweg.encode.collate_theirs import is_theirs


def pairs():
    return [
        {"prompt_ids": np.array([1, 2]), "chosen_ids": np.array([3, 4]), "rejected_ids": np.array([5, 6])},
        {"prompt_ids": np.array([7]), "chosen_ids": np.array([8, 9]), "rejected_ids": np.array([3])},
    ]


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_trls_preference_collator_joins_prompt_and_answer_instead_of_adding_them():
    trainer = pytest.importorskip("trl.trainer.dpo_trainer")
    collator = trainer.DataCollatorForPreference(pad_token_id=0)
    batch = next(iter(tw.Loader(tw.from_dataset(pairs()).batch(2, collate=collator))))
    assert batch["input_ids"].tolist() == [[1, 2, 3, 4], [7, 8, 9, 0], [1, 2, 5, 6], [7, 3, 0, 0]]
    assert batch["completion_mask"].tolist() == [[0, 0, 1, 1], [0, 1, 1, 0], [0, 0, 1, 1], [0, 1, 0, 0]]


def test_a_function_of_ones_own_gets_arrays():
    seen = []

    def mine(samples):
        seen.extend(samples)
        return {"n": np.array([len(s["prompt_ids"]) for s in samples])}

    batch = next(iter(tw.Loader(tw.from_dataset(pairs()).batch(2, collate=mine), return_tensors="np")))
    assert batch["n"].tolist() == [2, 1]
    assert all(isinstance(v, np.ndarray) for s in seen for v in s.values())
    assert not is_theirs(mine)


def test_a_subclass_of_theirs_is_theirs():
    transformers = pytest.importorskip("transformers")

    class Mine(transformers.DefaultDataCollator):
        pass

    assert is_theirs(Mine())
    assert is_theirs(transformers.default_data_collator)
