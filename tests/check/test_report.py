"""Reports: what counts as ok, and that every form of one tells the same."""

import io
import json

from rich.console import Console

from thalweg.check.finding import Finding
from thalweg.check.report import Report
from thalweg.check.terminal import show
from thalweg.check.tokens import Piece, View

VIEW = View(
    "docstring/a<b",
    (
        (Piece("ask <me>", "context", (1, 2)), Piece("answer", "loss", (3,))),
        (Piece("", "padding", (0,)), Piece("", "padding", (0,))),
    ),
)


def report(*levels):
    findings = [Finding(level, "prompt tokens in the loss", 3, 10, fix="say train_on") for level in levels]
    return Report("chat & pages", {"tokens": 1234, "exactly-once": True}, findings, [VIEW])


def test_a_report_is_ok_unless_a_finding_is_an_error():
    assert report("warning", "note").ok
    assert not report("warning", "error").ok


def test_html_is_one_page_that_points_nowhere_and_escapes_the_data():
    page = report("error").html()
    assert "<script" not in page
    assert "http" not in page
    assert "ask &lt;me&gt;" in page
    assert "docstring/a&lt;b" in page
    assert "chat &amp; pages" in page
    assert '<span class="loss" title="3">answer</span>' in page
    assert "2 padding tokens" in page
    assert "1,234" in page
    assert "3 of 10 samples" in page


def test_plain_text_brackets_what_is_trained_on():
    assert "ask <me>⟦answer⟧\n────\n(2 padding tokens)" in str(report())
    assert "E prompt tokens in the loss: 3 of 10 samples. Try: say train_on" in str(report("error"))


def test_json_has_the_same_facts_findings_and_tokens():
    data = json.loads(json.dumps(report("error").to_dict()))
    assert data["facts"] == {"tokens": 1234, "exactly-once": True}
    assert data["findings"][0]["count"] == 3
    assert data["samples"][0]["num_label_tokens"] == 1
    assert data["samples"][0]["documents"][0][1] == ["answer", "loss", [3]]


def painted(**kwargs):
    out = io.StringIO()
    show(report("note"), Console(file=out, width=80, **kwargs))
    return out.getvalue()


def test_a_terminal_gets_colours_and_a_pipe_gets_brackets():
    assert "⟦answer⟧" in painted()
    coloured = painted(force_terminal=True, color_system="standard", no_color=False)
    assert "\x1b[1;32manswer" in coloured
    assert "⟦" not in coloured
