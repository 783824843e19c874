"""What a newcomer's file makes the checks say: no pass without grounds, no false alarm, places that can be found."""

import json
import re

import numpy as np
import pytest

import thalweg as tw
from planted import EOS, SAMPLES, Letters
from thalweg.core.errors import ConfigError, InputError


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


def test_columns_that_half_of_the_samples_lack_are_named_and_not_called_alike(tmp_path):
    file = tmp_path / "mixed.jsonl"
    rows = [
        {"text": f"number {n}"} if n % 2 else {"messages": [{"role": "user", "content": f"{n}"}]} for n in range(60)
    ]
    file.write_text("\n".join(map(json.dumps, rows)))
    found = verdicts(file)["columns and dtypes"]
    assert (found.level, found.count, found.of) == ("note", 30, 60)
    assert found.numbers == {"messages": "30 without", "text": "30 without"}


def test_records_without_a_text_come_twice_only_where_their_values_do(tmp_path):
    file = tmp_path / "numbers.jsonl"
    file.write_text("\n".join(json.dumps({"id": n, "n": [n, n + 1]}) for n in range(20)))
    assert verdicts(file)["samples come once"].level == "ok"
    file.write_text("\n".join(json.dumps({"id": n, "n": [n % 5, 1]}) for n in range(20)))
    assert verdicts(file)["samples come once"].count == 15


def test_a_file_that_is_not_encoded_says_what_was_not_judged(tmp_path, qwen):
    file = tmp_path / "chat.jsonl"
    file.write_text("\n".join(json.dumps({"text": f"number {n}"}) for n in range(20)))
    assert "not judged: say tokenizer=" in str(tw.doctor(file))
    assert "not judged" not in str(tw.doctor(file, tokenizer=qwen))


def test_a_call_of_a_tool_is_an_answer():
    call = {"type": "function", "function": {"name": "f", "arguments": {}}}
    turns = [{"role": "user", "content": "do it"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    assert verdicts(tw.from_dataset([{"messages": turns}] * 9))["answers are there"].level == "ok"


def test_a_folder_and_a_glob_of_raw_files_are_looked_at_as_one(tmp_path):
    for part in range(3):
        (tmp_path / f"{part}.jsonl").write_text("\n".join(json.dumps({"text": f"{part} {n}"}) for n in range(5)))
    (tmp_path / "README.md").write_text("what it is")
    for target in (tmp_path, f"{tmp_path}/*.jsonl"):
        assert tw.doctor(target).facts["samples"] == 15
    with pytest.raises(InputError, match="no such file"):
        tw.doctor(f"{tmp_path}/*.csv")
    (tmp_path / "more.csv").write_text("text\na\n")
    with pytest.raises(InputError, match=r"several kinds: \.csv, \.jsonl.*csv'"):
        tw.doctor(tmp_path)


def test_words_for_settings_behind_anything_else_are_refused(tmp_path):
    file = tmp_path / "chat.jsonl"
    file.write_text('{"text": "a"}\n')
    with pytest.raises(ConfigError, match="is a word for a file of settings"):
        tw.doctor(file, words=["train.batch.size=2"])


def test_texts_that_end_in_the_same_token_twice_are_not_padding_where_no_tokenizer_is_known():
    rows = [np.array([[9 + k, 10, 11, 12 + k % 5, 12 + k % 5]]) for k in range(30)]
    batches = [{"input_ids": ids, "attention_mask": np.ones_like(ids)} for ids in rows]
    assert verdicts(batches)["mask ends at padding"].level == "ok"
    plain = [{"input_ids": [1, 2, 3, n], "attention_mask": [1] * 4} for n in range(50)]  # one ends in 3, 3
    assert verdicts(plain)["mask ends at padding"].level == "ok"
    for batch in batches:
        batch["input_ids"][:, -2:] = 0
    assert verdicts(batches)["mask ends at padding"].level == "error"


def test_wrong_tokens_are_counted_once_a_sample():
    found = verdicts(tw.from_dataset([{"input_ids": [5, -7, 6 + n]} for n in range(12)]).batch(2))
    assert (found["ids inside the embedding table"].count, found["ids inside the embedding table"].of) == (12, 12)


def test_the_filter_that_is_advised_against_outliers_leaves_them_out():
    rows = [{"input_ids": [9] * (900 if n == 7 else 20 + n % 7)} for n in range(64)]
    told = verdicts(tw.from_dataset(rows).shuffle().batch(4))["shapes of batches"]
    assert "1 of 16 batches" in told.what
    edge = int(re.search(r"lambda n: n <= (\d+)", told.fix)[1])
    kept = tw.from_dataset(rows).shuffle().filter(lambda n: n <= edge, ["length"]).batch(4)
    assert verdicts(kept)["shapes of batches"].level == "ok"


def test_why_no_batch_is_made_comes_with_one_remedy():
    told = verdicts(tw.from_dataset([{"input_ids": [5, 6], "labels": [5]}] * 9).batch(2))["batches can be made"]
    assert str(told).count("Try:") == 1


def test_a_tokenizer_that_cannot_be_used_is_not_asked_for_again(tmp_path):
    file = tmp_path / "odd.jsonl"
    file.write_text("\n".join(json.dumps({"n": n, "title": f"{n}"}) for n in range(9)))
    assert "no known layout has the columns n, title" in str(tw.doctor(file, tokenizer=Letters()).facts["tokens"])


def test_a_first_line_that_cannot_be_read_hides_no_other(tmp_path, qwen):
    file = tmp_path / "chat.jsonl"
    file.write_text("\n".join(["no json", *(json.dumps({"text": f"number {n}"}) for n in range(20))]))
    found = verdicts(file, tokenizer=qwen)
    assert (found["samples can be made"].count, found["samples can be made"].of) == (1, 21)
    assert found["something is trained"].level == "ok"
