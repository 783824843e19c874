"""What a feed refuses when it is built, and which stage makes it a stream."""

import random

import numpy as np
import pytest

import thalweg as tw
from thalweg.core.errors import ConfigError, InputError

ROWS = [{"input_ids": np.arange(n), "text": "x" * n} for n in (3, 5, 7)]


def feed():
    return tw.from_dataset(ROWS)


WRONG = {
    "batch before shuffle": (lambda f: f.batch(2).shuffle(), "shuffle after batch"),
    "repeat before shuffle": (lambda f: f.repeat(2).shuffle(), "shuffle after repeat"),
    "pack after batch": (lambda f: f.batch(2).pack(8), "pack after batch"),
    "pack twice": (lambda f: f.pack(8).pack(8), "pack after pack"),
    "two ways of batching": (lambda f: f.batch(2).token_budget(64), "alternatives"),
    "filter behind pack": (lambda f: f.pack(8).filter(bool), "filter after pack"),
    "cache behind batch": (lambda f: f.batch(2).cache(), "cache after batch"),
    "whole feed repeated": (lambda f: f.pack(8).repeat(2), r"Loader\(feed, epochs=n\)"),
    "capacity 0": (lambda f: f.pack(0), "capacity must be"),
    "batch 0": (lambda f: f.batch(0), "size must be"),
    "unknown policy": (lambda f: f.pack(8, policy="bestfit"), "did you mean 'best_fit'"),
    "concat_split with overlong": (lambda f: f.pack(8, policy="concat_split", overlong="drop"), "takes no overlong"),
    "unseeded random filter": (lambda f: f.filter(lambda s: random.random() < 0.5), "random filter without a seed"),
    "cache of random numbers": (lambda f: f.map(lambda s, i: s, with_info=True).cache(), "freeze"),
    "stream that does not say": (lambda f: f.map(lambda s: s).pack(8), "say what becomes of them"),
    "no function": (lambda f: f.map(3), "needs a function"),
    "overwriting": (
        lambda f: f.map(len, input_columns="text", output_columns=["input_ids"]),
        "exists and is not an input",
    ),
    "unknown column": (lambda f: f.map(len, input_columns="txt"), "did you mean 'text'"),
    "unknown removal": (lambda f: f.map(len, remove_columns=["tex"]), "did you mean 'text'"),
    "unknown table column": (lambda f: f.filter(lambda x: x > 1, columns=["lenght"]), "did you mean 'length'"),
    "old lengths": (
        lambda f: f.map(lambda s: s).filter(lambda x: x > 1, columns="length"),
        r"lengths are not known here.*cache\(\) before the filter",
    ),
    "shares above 1": (lambda f: f.split({"a": 0.9, "b": 0.2}), "at most 1"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_orders_are_refused_with_reason_and_remedy(case):  # E10 E11 E25 E51
    build, says = WRONG[case]
    with pytest.raises(ConfigError, match=says):
        build(feed())


MIXES = {
    "negative": ({"weights": {"a": -1, "b": 2}}, "at least 0"),
    "zero sum": ({"weights": {"a": 0, "b": 0}}, "sum above 0"),
    "not a number": ({"weights": {"a": float("nan"), "b": 1}}, "not a finite number"),
    "unknown source": ({"weights": {"aa": 1}}, "no source"),
    "never ends": ({"weights": {"a": 1, "b": 0}, "on_exhausted": "stop_all"}, "never ends"),
    "first breakpoint": ({"weights": [(5, {"a": 1, "b": 1})]}, "rise from 0"),
}


@pytest.mark.parametrize("case", MIXES)
def test_mixes_that_mean_nothing_are_refused(case):
    given, says = MIXES[case]
    with pytest.raises(ConfigError, match=says):
        tw.mix({"a": feed(), "b": feed()}, **given)


def test_weights_by_tokens_need_lengths():
    with pytest.raises(ConfigError, match="need lengths"):
        tw.mix({"a": feed().map(lambda s: s), "b": feed()}, by="tokens")


def test_packed_sources_and_nested_mixes_are_refused():
    for inner in (feed().pack(8, overlong="drop"), tw.mix({"x": feed()})):
        with pytest.raises(ConfigError, match="source 'a'"):
            tw.mix({"a": inner, "b": feed()})


def test_a_feed_is_no_dataset():
    with pytest.raises(TypeError, match="num_rows"):
        len(feed())
    with pytest.raises(TypeError, match=r"feed\.at"):
        feed()[0]
    assert feed()  # truth does not ask for a length


def test_kind_and_why():
    assert feed().shuffle().pack(8, overlong="drop").batch(2).kind == "planned"
    assert feed().map(lambda s: s).batch(2).kind == "planned"
    mapped = feed().map(lambda s: s).pack(8, overlong="drop")
    assert mapped.kind == "stream"
    assert "map(" in mapped.why
    assert ".cache()" in mapped.why
    assert "a stream because" in str(mapped)
    assert feed().map(lambda s: s).cache().pack(8).kind == "planned"
    assert feed().map(lambda s: s, length="same").pack(8).kind == "planned"
    assert tw.from_stream(iter(ROWS)).batch(2).kind == "stream"


def test_sources_that_are_none_are_refused():
    with pytest.raises(InputError, match="from_stream"):
        tw.from_dataset(iter(ROWS))
    with pytest.raises(InputError, match="cannot be iterated"):
        tw.from_stream(3)
    with pytest.raises(ConfigError, match="did you mean 'text'"):
        tw.from_dataset(ROWS, id="txt")


def test_a_local_shuffle_says_how_local_it_is_and_is_another_feed():
    near, free = feed().shuffle(locality=64), feed().shuffle()
    assert "windows of 1,024" in str(near)
    assert near.fingerprint != free.fingerprint
    assert sorted(len(s["input_ids"]) for s in near) == [3, 5, 7]
