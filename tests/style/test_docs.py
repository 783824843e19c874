"""Every Python block of README.md and docs/ runs as written: the blocks of a page in order, as one program.

A page may hold, as HTML comments that a reader does not see,
  <!-- not run: needs a GPU -->     right above a block that cannot run here, with the reason;
  <!-- before                       code that makes what a block below takes for granted (a file, a tokenizer).
  text = "..."
  -->
Pages that use torch or transformers are marked `slow` and `pages`: `make test` runs them, a bare `pytest` does not.
"""

import re
from pathlib import Path

import pytest

from warm import Warm, needs_of

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
HEAVY = re.compile(r"\b(torch|transformers|datasets|trl|ChatEncoder|TextEncoder|Loader|Executor)\b")


def program(page):
    """The page's Python as one program with the page's own line numbers."""
    out, mode, skip = [], "", False
    for row in page.read_text(encoding="utf-8").splitlines():
        text = row.strip()
        opened = not mode
        if opened and re.match(r"```python\b", text):
            mode = "skipped" if skip else "python"
        elif opened and text.startswith("```"):
            mode = "other"
        elif opened and text == "<!-- before":
            mode = "before"
        elif mode and text == ("-->" if mode == "before" else "```"):
            mode = ""
        elif mode in {"python", "before"}:
            out.append(row)
            continue
        if text:
            skip = bool(re.match(r"<!-- not run: \S.*-->", text))
        out.append("")
    assert not mode, f"{page.name}: a block is not closed"
    return "\n".join(out) + "\n"


def marked(page):
    heavy = HEAVY.search(program(page))
    return pytest.param(page, id=page.name, marks=[pytest.mark.slow, pytest.mark.pages] if heavy else [])


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """Runs pages with a cache of their own, empty at first."""
    fresh = Warm(XDG_CACHE_HOME=str(tmp_path_factory.mktemp("cache")))
    yield fresh
    fresh.close()


@pytest.mark.parametrize("page", [marked(p) for p in PAGES if program(p).strip()])
def test_the_python_of_a_page_runs_as_written(page, tmp_path, fresh):
    script = tmp_path / f"{page.stem}.py"
    script.write_text(program(page), encoding="utf-8")
    (tmp_path / "home").mkdir()
    (tmp_path / "work").mkdir()
    done = fresh.run(script, cwd=tmp_path / "work", env={"HOME": str(tmp_path / "home")}, needs=needs_of(script))
    assert done.returncode == 0, f"{page.name}:\n{done.out[-1500:]}\n{done.err[-3000:]}"


def test_blocks_are_found_with_their_line_numbers(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# A page\n```python\nx = 1\n```\ntext\n```console\n$ x = 2\n```\n"
        "<!-- not run: needs a hub -->\n```python\n1 / 0\n```\n"
        "<!-- before\ny = 3\n-->\n```python\nassert x + y == 4\n```\n"
    )
    rows = program(page).splitlines()
    assert [(i, row) for i, row in enumerate(rows, 1) if row] == [
        (3, "x = 1"),
        (14, "y = 3"),
        (17, "assert x + y == 4"),
    ]


def test_every_page_of_the_documentation_can_be_reached():
    """A page that no other page links is found by nobody."""
    linked = {Path(m).name for page in PAGES for m in re.findall(r"\]\(([^)#]+\.md)[^)]*\)", page.read_text())}
    assert {page.name for page in PAGES if page.parent.name == "docs"} - linked == set()


def test_links_between_pages_lead_somewhere():
    broken = []
    for page in [*PAGES, ROOT / "benchmarks" / "README.md", ROOT / "ARCHITECTURE.md"]:
        for target in re.findall(r"\]\(([^)\s#]+)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target and not (page.parent / target).exists():
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert broken == []
