"""The shape of the sources: sizes, names, head comments, and words that stay out of messages."""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src" / "thalweg").rglob("*.py"))
CODE = SOURCES + sorted((ROOT / "benchmarks").glob("*.py")) + sorted((ROOT / "examples").rglob("*.py"))
LONGEST_MODULE, LONGEST_FUNCTION = 400, 60
# Places where anything lands; a name says what is decided there.
NO_NAMES = {"util", "utils", "common", "helper", "helpers", "misc", "stuff"}
INNER_WORDS = re.compile(r"\b(lanes?|seats?|credits?|attempts?|leases?)\b", re.IGNORECASE)

each_source = pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT / "src" / "thalweg")))


def short(path):
    return path.relative_to(ROOT)


def test_no_module_is_longer_than_400_lines():
    sizes = {short(path): len(path.read_text().splitlines()) for path in CODE}
    assert {path: n for path, n in sizes.items() if n > LONGEST_MODULE} == {}


def test_no_function_is_longer_than_60_lines():
    """Its signature and docstring, a contract that may be long, are not counted."""
    found = {}
    for path in CODE:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first = node.body[0]
                contract = first.end_lineno - first.lineno + 1 if ast.get_docstring(node) else 0
                length = node.end_lineno - first.lineno + 1 - contract
                if length > LONGEST_FUNCTION:
                    found[f"{short(path)}:{node.lineno} {node.name}"] = length
    assert found == {}


def test_no_folder_or_module_is_a_place_for_anything():
    names = {name for path in CODE for name in (*path.relative_to(ROOT).parts[:-1], path.stem)}
    assert names & NO_NAMES == set()


def test_every_module_begins_with_what_it_decides():
    bare = []
    for path in CODE:
        text = path.read_text()
        head = ast.get_docstring(ast.parse(text)) or ""
        if text.strip() and len(head) < 40:
            bare.append(short(path))
    assert bare == []


@each_source
def test_nothing_is_left_for_later(path):
    comments = (
        t for t in tokenize.generate_tokens(io.StringIO(path.read_text()).readline) if t.type == tokenize.COMMENT
    )
    left = [f"{t.start[0]}: {t.string}" for t in comments if re.search(r"\b(TODO|FIXME|XXX|HACK)\b", t.string)]
    stubs = [
        f"{node.lineno}: raise NotImplementedError"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Raise) and "NotImplementedError" in ast.unparse(node)
    ]
    assert left + stubs == []


@each_source
def test_messages_use_no_inner_words(path):
    """Words of the inside (API.md) that a user would have to look up."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Raise):
            texts = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
            found += [f"{node.lineno}: {text}" for text in texts if INNER_WORDS.search(text)]
    assert found == []


def test_user_documentation_uses_no_inner_words():
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "changes").glob("*.md"))]
    found = [
        f"{short(page)}:{i}: {row}"
        for page in pages
        for i, row in enumerate(page.read_text().splitlines(), 1)
        if INNER_WORDS.search(row)
    ]
    assert found == []


def test_the_page_that_says_where_everything_is_fits_60_lines_and_names_every_room():
    page = (ROOT / "ARCHITECTURE.md").read_text()
    assert len(page.splitlines()) <= 60
    rooms = {
        p.parent.name for p in (ROOT / "src" / "thalweg").glob("*/__init__.py") if len(list(p.parent.glob("*.py"))) > 1
    }
    assert {room for room in rooms if f"`{room}/`" not in page} == set()


def test_examples_are_short_and_end_in_an_assert():
    for path in sorted((ROOT / "examples").rglob("*.py")):
        text = path.read_text()
        assert len(text.splitlines()) <= 60, short(path)
        last = ast.parse(text).body[-1]
        while isinstance(last, ast.If | ast.With | ast.For | ast.FunctionDef):
            last = last.body[-1]
        if isinstance(last, ast.Expr) and ast.unparse(last).startswith("main("):
            (main,) = [n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef) and n.name == "main"]
            last = main.body[-1]
        assert isinstance(last, ast.Assert), f"{short(path)} ends in {ast.unparse(last)}"
