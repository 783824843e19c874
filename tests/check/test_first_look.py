"""The first look at a batch: names, shapes, dtypes, figures, what is plainly wrong, and its pictures."""

import base64
import io

import numpy as np
import pytest

import thalweg as tw
from planted import SAMPLES, Letters, feed, talk
from thalweg.check.columns import figures, plainly_wrong
from thalweg.check.pictures import SIDE, thumbnails


def test_a_first_look_names_shapes_dtypes_and_ranges_of_every_column():  # E52
    report = tw.inspect(tw.from_dataset(SAMPLES).batch(4), tokenizer=Letters())
    longest = max(len(s["input_ids"]) for s in SAMPLES[:4])
    assert report.facts["column input_ids"].startswith(f"int64 4x{longest}, 0 to ")
    assert "off the loss (-100)" in report.facts["column labels"]
    assert "0 to 1, mean 0.84" in report.facts["column attention_mask"]
    assert report.ok


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"labels": np.full((2, 3), -100)}, "every label is -100"),
        ({"attention_mask": np.zeros((2, 3), int)}, "zero everywhere"),
        ({"input_ids": np.empty((0, 0), int)}, "the batch is empty"),
    ],
)
def test_what_is_plainly_wrong_with_a_first_batch_is_an_error(change, words):  # E52
    good = {"input_ids": np.ones((2, 3), int), "labels": np.ones((2, 3), int), "attention_mask": np.ones((2, 3), int)}
    assert plainly_wrong(good) == []
    one_row = np.array([[-100] * 3, [1] * 3])
    assert plainly_wrong(good | {"labels": one_row}) == []  # a row without a trained token may be, a batch may not
    (found,) = plainly_wrong(good | change)
    assert found.level == "error"
    assert words in found.what


def test_labels_all_off_the_loss_make_the_look_fail():  # E52
    def untrained(sample):
        sample["labels"] = [-100] * len(sample["labels"])

    untrained.all = True
    report = tw.inspect(feed(untrained).batch(2), tokenizer=Letters())
    assert not report.ok
    assert "every label is -100" in str(report)


def test_figures_leave_ignored_labels_out_of_range_and_mean():
    assert figures({"labels": np.array([[-100, 5, 7]])})["column labels"].endswith("5 to 7, mean 6, 0.0% zero")
    assert figures({"x": np.array([0.5, 1.0])})["column x"] == "float64 2, 0.5 to 1, mean 0.75, 0.0% zero"
    assert figures({"names": ["a", "b"], "n": 3})["column names"] == "list of 2"


def test_pictures_of_the_first_samples_are_thumbnails_in_the_page(tmp_path):
    image = pytest.importorskip("PIL.Image")
    image.new("RGB", (400, 200), (200, 30, 30)).save(tmp_path / "red.png")
    records = [{**talk(n), "images": [str(tmp_path / "red.png")]} for n in range(4)]
    report = tw.inspect(tw.from_dataset(records), n=2)
    assert len(report.pictures) == 2
    head, _, data = report.pictures[0].partition(",")
    assert head == "data:image/jpeg;base64"
    with image.open(io.BytesIO(base64.b64decode(data))) as small:
        assert small.size == (SIDE, SIDE // 2)
        assert small.getpixel((5, 5))[0] > 150
    assert report.html().count("<img ") == 2


def test_pictures_of_streams_and_mixes_are_shown_and_a_source_that_is_read_once_is_left_alone(tmp_path):
    image = pytest.importorskip("PIL.Image")
    image.new("RGB", (40, 20), (30, 200, 30)).save(tmp_path / "green.png")
    records = [{**talk(n), "images": [str(tmp_path / "green.png")]} for n in range(6)]
    parts = {"a": tw.from_dataset(records), "b": tw.from_dataset([talk(n) for n in range(6)])}
    for made, shown in ((tw.from_stream(lambda: iter(records)), 2), (tw.mix(parts, weights={"a": 1, "b": 1}), 1)):
        assert len(tw.inspect(made, n=2).pictures) == shown
    once = [{"input_ids": [n], "images": [str(tmp_path / "green.png")]} for n in range(6)]
    for made in (tw.from_stream(iter(once)), tw.mix({"a": tw.from_stream(iter(once))}, weights={"a": 1})):
        report = tw.inspect(made.batch(1, collate=lambda s: {"input_ids": [s[0]["input_ids"]]}), step=1)
        assert len(report.samples) == 1
        assert report.pictures == []


def test_a_picture_that_cannot_be_read_is_left_out(tmp_path):
    pytest.importorskip("PIL.Image")
    (tmp_path / "broken.png").write_bytes(b"no picture")
    parts = [{"role": "user", "content": [{"type": "image", "image": "broken.png"}, {"type": "text", "text": "?"}]}]
    assert thumbnails([{"messages": parts}, {"image": "missing.png"}], str(tmp_path)) == []


def test_a_sample_without_pictures_has_none_in_its_page():
    report = tw.inspect(tw.from_dataset([talk(n) for n in range(4)]), n=2)
    assert report.pictures == []
    assert "<img" not in report.html()
