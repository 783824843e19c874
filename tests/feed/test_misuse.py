"""Feeds and loaders used wrongly: told at once, by name, and no value is changed on its way."""

import numpy as np
import pytest

import thalweg as tw
from thalweg.core.errors import ConfigError, InputError, SampleError, StateError, ThalwegError

ROWS = [{"input_ids": np.arange(1, k + 1, dtype=np.int32), "id": f"s{k}"} for k in (3, 5, 2, 8)]
FEED = tw.from_dataset(ROWS, id="id")
BATCHED = FEED.batch(1)


def loader(feed=BATCHED, **words):
    return tw.Loader(feed, return_tensors="np", **words)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: FEED.select([True, False, True, False]), "select takes whole numbers.*flatnonzero"),
        (lambda: FEED.select([0.5]), "select takes whole numbers"),
        (lambda: FEED.select([[0]]), r"shape \(1, 1\)"),
        (lambda: FEED.split([0.5, 0.5]), "split takes names and shares"),
        (lambda: FEED.split({}), "split takes names and shares"),
        (lambda: FEED.pack(8, policy="window_x"), "window_x"),
        (lambda: FEED.pack(8, policy="window_0"), "window_0"),
        (lambda: FEED.map(len, ahead=0), "ahead must be an integer of at least 1, not 0"),
        (lambda: tw.mix([FEED, FEED]), "mix takes feeds by name"),
        (lambda: tw.concat([FEED]), "concat takes feeds by name"),
        (lambda: tw.mix({"a": ROWS}), "source 'a' is no feed but list"),
        (lambda: tw.mix({"a": FEED, "b": FEED}, weights={"a": "1", "b": 1}), "not a finite number"),
        (lambda: tw.mix({"a": FEED, "b": FEED}, weights={"a": 1e-9, "b": 1}), "would count as 0"),
        (lambda: tw.mix({"a": FEED, "b": FEED}, weights={"a": 1}), "source 'b' has no weight"),
        (lambda: tw.from_records(3), "int is no record set"),
        (lambda: loader(epochs="1"), "epochs='1'"),
        (lambda: loader(max_steps=1.5), "max_steps=1.5"),
        (lambda: loader(gradient_accumulation_steps=True), "gradient_accumulation_steps=True"),
        (lambda: loader(workers=-1), "workers=-1"),
        (lambda: loader(workers="many"), "workers='many'"),
        (lambda: loader(prefetch=-1), "prefetch=-1"),
        (lambda: loader(max_bytes="much"), "'much' is no size"),
        (lambda: loader(seed="x"), "seed='x'"),
        (lambda: loader().set_epoch(-1), "epochs count from 0"),
        (lambda: loader().set_epoch("1"), "epochs count from 0"),
    ],
)
def test_what_means_nothing_is_refused_where_it_is_written(wrong, words):
    with pytest.raises(ConfigError, match=words):
        wrong()


def test_a_dict_is_no_dataset():
    with pytest.raises(InputError, match="dict has no len"):
        tw.from_dataset({"input_ids": [1, 2]})


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"input_ids": [1.5, 2]}, "'input_ids' holds float64"),
        ({"input_ids": ["a"]}, "whole numbers"),
        ({"input_ids": [[1, 2]]}, r"shape \(1, 2\)"),
        ({"input_ids": [2**40]}, "1099511627776 outside int32"),
        ({"input_ids": [1, 2], "labels": [1.0, 2.0]}, "'labels' holds float64"),
        ({"input_ids": [1, 2, 3], "labels": [1, 2]}, "3 tokens and 2 labels"),
    ],
)
# E9
def test_tokens_and_labels_that_are_none_are_refused_and_never_rounded(row, words):
    with pytest.raises(SampleError, match=words):
        list(loader(tw.from_dataset([row]).batch(1)))


@pytest.mark.parametrize(
    "change",
    [
        {"row": "x"},
        {"row": "-1"},
        {"row": None},
        {"epoch": "1.0"},
        {"step": ""},
        {"version": "x"},
        {"kind": "stream"},
        {"parts": ""},
        {"parts": "data"},
        {"fingerprint": "0"},
        {"tail": "all"},
        {"tail": None},
        {"row": "999999"},
        {"block": "7"},
        {"block": "7", "row": "1"},
    ],
)
def test_a_state_that_was_touched_is_refused_by_name(change):
    state = {k: v for k, v in (loader().state_dict() | change).items() if v is not None}
    with pytest.raises(StateError):
        loader().load_state_dict(state)


@pytest.mark.parametrize("state", [None, "text", {}, {"a": "b"}, []])
def test_what_is_no_state_is_refused(state):
    with pytest.raises(StateError):
        loader().load_state_dict(state)


def test_a_device_that_is_not_there_is_told_when_the_loader_is_made():
    torch = pytest.importorskip("torch")
    with pytest.raises(ThalwegError, match="is no device"):
        tw.Loader(BATCHED, device="gpu0")
    if not torch.cuda.is_available():
        with pytest.raises(ThalwegError, match="sees no GPU"):
            tw.Loader(BATCHED, device="cuda")


# E8
def test_a_mask_of_ones_is_left_out_and_samples_padded_before_are_refused():
    rows = [{"input_ids": [5, 6, 7], "attention_mask": [1, 1, 1]} for _ in range(4)]
    batch = next(iter(tw.Loader(tw.from_dataset(rows).batch(2), return_tensors="np")))
    assert batch["attention_mask"].tolist() == [[1, 1, 1]] * 2
    rows[3] = {"input_ids": [5, 6, 0], "attention_mask": [1, 1, 0]}
    with pytest.raises(ConfigError, match=r"sample 3 .* is padded.*tokenise without padding"):
        tw.Loader(tw.from_dataset(rows).batch(2))


def test_files_without_the_column_of_ids_are_refused_when_they_are_named(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "one", "name": "x"}\n')
    with pytest.raises(ConfigError, match="did you mean 'name'"):
        tw.from_files(str(tmp_path / "a.jsonl"), id="nam")


def test_a_message_about_the_only_source_names_no_empty_one():
    with pytest.raises(ConfigError) as caught:
        tw.Loader(tw.from_dataset([{"text": "a"}]).batch(1))
    assert "the source has no column 'input_ids'" in str(caught.value)
    assert "''" not in str(caught.value)
