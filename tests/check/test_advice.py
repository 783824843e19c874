"""Advice: it follows the slowest stage, stops where training is the limit, and knows the three tuning cases."""

import pytest

from thalweg.check.advice import Costs, advise, case_of, values_of


def first(**costs):
    return advise(Costs(**costs))[0].change


@pytest.mark.parametrize(
    ("costs", "change"),
    [
        ({"read": 0.1, "train": 1.0, "waited": 0.01}, "you are training-bound, stop"),
        ({"read": 0.9, "train": 0.1, "waited": 0.8}, "write records"),
        ({"maps": {"f": 0.9}, "train": 0.1, "waited": 0.8}, "cache"),
        ({"maps": {"f": 0.9}, "train": 0.1, "waited": 0.8, "cached": True}, "more workers"),
        ({"maps": {"f": 0.9}, "train": 0.1, "waited": 0.8, "random": True, "mode": "threads", "workers": 4, "cpus": 4,
          "computing": 0.95}, "processes instead of threads"),
        ({"maps": {"f": 0.9}, "train": 0.1, "waited": 0.8, "random": True, "mode": "threads", "workers": 4, "cpus": 4,
          "computing": 0.05}, "more workers"),
        # four threads that wait for the interpreter's lock most of the time, and four that run beside each other
        ({"maps": {"f": 0.9}, "train": 0.1, "waited": 0.8, "random": True, "mode": "threads", "workers": 4, "cpus": 8,
          "computing": 0.24, "cores": 0.96}, "processes instead of threads"),
        ({"maps": {"f": 0.9}, "train": 0.1, "waited": 0.8, "random": True, "mode": "threads", "workers": 4, "cpus": 8,
          "computing": 0.65, "cores": 2.6}, "more workers"),
        ({"maps": {"f": 0.8}, "train": 0.5, "waited": 0.2, "workers": 4, "cpus": 4, "jitter": 0.9, "cached": True},
         "more ahead"),
        ({"maps": dict.fromkeys("abcd", 0.2), "train": 0.1, "waited": 0.7, "cached": True, "mode": "processes",
          "workers": 2, "cpus": 2, "computing": 0.9}, "merge maps"),
        ({"transfer": 0.9, "train": 0.1, "waited": 0.2}, "copy ahead"),
        ({"collate": 0.9, "train": 0.1, "waited": 0.8}, "fewer columns and shapes"),
    ],
)  # fmt: skip
def test_the_first_advice_fits_the_slowest_stage(costs, change):  # E27 E30 E54
    assert first(**costs) == change


def test_packing_is_advised_only_where_nothing_is_packed():  # E54
    for packed in (False, True):
        told = str(advise(Costs(collate=0.9, train=0.1, waited=0.8, packed=packed))[0])
        assert "a plain collate" in told
        assert (".pack(" in told) is not packed


def test_advice_names_the_slowest_function_and_what_it_costs():  # E54
    told = str(advise(Costs(maps={"quick": 0.1, "slow": 0.8}, train=0.1, waited=0.8))[0])
    assert "functions take 900.0 ms of a batch, most of it slow" in told


def test_the_share_of_waiting_is_of_the_whole_step():  # E1
    assert Costs(waited=3.0, transfer=1.0, train=6.0).share == pytest.approx(0.3)
    assert Costs().share == 0.0


# A53
@pytest.mark.parametrize(
    ("preprocess", "consume", "case", "workers", "ahead"),
    [
        (8.0, 1.0, "preprocessing is slower", 9, 18),
        (8.0, 1e-3, "preprocessing is slower", 16, 32),
        (1.0, 1.1, "alike", 1, 2),
        (1.2, 1.0, "alike", 2, 4),
        (0.1, 1.0, "training is slower", 1, 2),
        (1.0, 0.0, "preprocessing is slower", 16, 32),
    ],
)
def test_the_three_tuning_cases_and_their_values(preprocess, consume, case, workers, ahead):
    assert case_of(preprocess, consume) == case
    values = values_of(case, preprocess, consume, 16)
    assert values == {"workers": workers, "ahead": ahead}
    assert case == "training is slower" or workers <= values["ahead"] <= 2 * workers
