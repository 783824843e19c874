"""What a newcomer's file makes the checks say: no pass without grounds, no false alarm, places that can be found."""

import json
import re

import numpy as np
import pytest

import thalweg as tw
from planted import EOS, SAMPLES, Letters


def verdicts(target, **told):
    return {finding.check: finding for _, finding in tw.doctor(target, **told).verdicts}


def samples(**columns):
    return [{name: list(value) for name, value in columns.items()} for _ in range(3)]


def test_a_negative_id_is_an_error_where_no_vocabulary_is_known():
    found = verdicts(tw.from_dataset(samples(input_ids=[5, -7, 6])))["ids inside the embedding table"]
    assert (found.level, found.count, found.of) == ("error", 3, 3)
    assert "-7" in found.what
    assert "ids inside the embedding table" not in verdicts(tw.from_dataset(samples(input_ids=[5, 7, 6])))


@pytest.mark.parametrize(("span", "level"), [([2, 9], "error"), ([-1, 2], "error"), ([1, 3], "ok")])
def test_spans_beyond_their_tokens_are_an_error_before_training(span, level):
    found = verdicts(tw.from_dataset(samples(input_ids=[5, 6, 7], loss_spans=[span])))["equal lengths"]
    assert found.level == level
    assert level == "ok" or f"{span} over 3 tokens" in found.what


def test_labels_are_not_called_tokens_of_a_vocabulary_that_nobody_knows():
    plain = tw.from_dataset(samples(input_ids=[5, 6, 7], labels=[-100, 6, 7]))
    assert "labels inside the vocabulary" not in verdicts(plain)
    assert verdicts(plain, vocab_size=10)["labels inside the vocabulary"].level == "ok"
    odd = tw.from_dataset(samples(input_ids=[5, 6, 7], labels=[-100, -5, 7]))
    assert verdicts(odd)["labels inside the vocabulary"].level == "error"


def test_places_are_those_of_the_file_and_every_reason_is_told_once(tmp_path):
    file = tmp_path / "mixed.jsonl"
    lines = [json.dumps({"id": str(n), "text": f"this is number {n}"}) for n in range(60)]
    lines[5], lines[20], lines[21] = '{"id": "5", "text": [', "no json", "nor this"
    lines[40] = json.dumps({"id": "40", "text": ""})
    file.write_text("\n".join(lines))
    found = verdicts(file)
    assert found["empty samples"].where == "mixed.jsonl:41"
    failed = found["samples can be made"]
    assert (failed.count, failed.of, failed.numbers) == (3, 60, {"allowed": 0})
    for part in ("Input data was truncated", "malformed", "mixed.jsonl:6", "2 times, the first [mixed.jsonl:21]"):
        assert part in failed.what
    assert str(failed).count("Try:") == 1


def test_whole_samples_of_the_greatest_length_are_not_called_cut():
    def long(end):
        made = [{"input_ids": np.arange(9, 9 + 20 + n % 9).tolist()} for n in range(60)]
        return [{"input_ids": s["input_ids"][:-2] + end} for s in made]

    letters = Letters()
    assert verdicts(tw.from_dataset(long([EOS, 10])), tokenizer=letters)["truncation"].level == "ok"
    assert verdicts(tw.from_dataset(long([50, 51])), tokenizer=letters)["truncation"].level == "warning"
    ragged = [{"input_ids": list(range(n, n + 30))} for n in range(10, 70)]
    assert verdicts(tw.from_dataset(ragged))["truncation"].level == "note"
    assert verdicts(tw.from_dataset(SAMPLES), tokenizer=letters)["truncation"].level == "ok"


def test_advice_on_shapes_and_padding_is_what_can_be_typed_and_helps():
    rows = [{"input_ids": [9] * (5 + 3 * n)} for n in range(240)]
    plain = verdicts(tw.from_dataset(rows).shuffle().batch(4))
    shapes, padding = plain["shapes of batches"], plain["padding wasted"]
    assert shapes.fix.startswith("pad_to_multiple_of=32 leaves ")
    left = int(shapes.fix.split("leaves ")[1].split(";")[0])
    typed = verdicts(tw.from_dataset(rows).shuffle().batch(4, pad_to_multiple_of=32))["shapes of batches"]
    assert (typed.level, typed.numbers["shapes"]) == ("ok", left)
    assert padding.level == "warning"
    how = re.search(r"\.bucket\((\[.*?\]), (\[.*?\])\)", padding.fix)
    feed = tw.from_dataset(rows).shuffle().bucket(json.loads(how[1]), json.loads(how[2]), pad_to="boundary")
    bucketed = verdicts(feed)
    assert bucketed["padding wasted"].level == "ok"
    assert bucketed["shapes of batches"].numbers["shapes"] <= 8
