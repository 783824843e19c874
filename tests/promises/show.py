"""Shows every promise line and case with the tests that name it, and those that no test names.

A promise line is A24 of lists/*.md, a case K30 of lists/cases.md. A test names them in a comment that begins with them,
on the lines right above it or inside it: `# A24 K30`. Decides what counts as naming; whether the test is a good one
shows only when the behaviour is broken on purpose.

Run: python tests/promises/show.py [A24 | B | ...] [--missing] [--json]
"""

import argparse
import ast
import io
import json
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeGuard

LISTS = Path(__file__).resolve().parent / "lists"
TESTS = Path(__file__).resolve().parents[1]
NAMED = re.compile(r"#\s*((?:[A-EK]\d{1,2}\b[\s,;:/]*)+)")


@dataclass
class Line:
    """One promise line or case."""

    text: str
    tests: list[str] = field(default_factory=list)


@dataclass
class Named:
    """A comment that names lines, and the tests that it belongs to (none: it stands beside no test)."""

    path: Path
    row: int
    ids: list[str]
    tests: list[str]


def read_lists(folder: Path = LISTS) -> dict[str, Line]:
    """Read all lines, A to E then K. Several may share a row ("B5 .. / B6 ..."): ids rise by one in their list."""
    found: dict[str, Line] = {}
    for path in sorted(folder.glob("*.md")):
        for row in path.read_text(encoding="utf-8").splitlines():
            case = re.match(r"### (K\d+) (.*)", row)
            if case:
                found[case[1]] = Line(case[2])
            elif re.match(r"[A-E]\d+ ", row):
                found.update(_split(row, found))
    return dict(sorted(found.items(), key=lambda item: (item[0][0], int(item[0][1:]))))


def _split(row: str, before: dict[str, Line]) -> Iterator[tuple[str, Line]]:
    letter, last = row[0], max((int(i[1:]) for i in before if i[0] == row[0]), default=0)
    starts = []
    for match in re.finditer(rf"\b{letter}(\d+)\b", row):
        if int(match[1]) == last + 1:  # other numbers are references to other lines
            starts.append(match)
            last += 1
    for match, after in zip(starts, [*starts[1:], None], strict=True):
        text = row[match.end() : after.start() if after else None].strip(" /:,")
        yield match[0], Line(text)


def named_in(path: Path, root: Path = TESTS) -> list[Named]:
    """Give every comment of a test file that begins with line ids."""
    source = path.read_text(encoding="utf-8")
    rows = source.splitlines()
    spans = list(_spans(ast.parse(source), rows, str(path.relative_to(root))))
    out = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        match = NAMED.match(token.string) if token.type == tokenize.COMMENT else None
        if match:
            row = token.start[0]
            inside = [(last - first, tests) for first, last, tests in spans if first <= row <= last]
            tests = min(inside)[1] if inside else []
            out.append(Named(path, row, re.findall(r"[A-EK]\d+", match[1]), tests))
    return out


def _spans(tree: ast.AST, rows: list[str], where: str) -> Iterator[tuple[int, int, list[str]]]:
    """(first row, last row, tests) of each test function and class, with decorators and the comments right above."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            tests = [f"{where}::{node.name}::{f.name}" for f in node.body if _is_test(f)]
            yield from _spans(node, rows, f"{where}::{node.name}")
        elif _is_test(node):
            tests = [f"{where}::{node.name}"]
        else:
            continue
        first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
        while first > 1 and rows[first - 2].strip().startswith("#"):
            first -= 1
        yield first, node.end_lineno or node.lineno, tests


def _is_test(node: ast.AST) -> TypeGuard[ast.FunctionDef | ast.AsyncFunctionDef]:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test")


def collect(root: Path = TESTS, lists: Path = LISTS) -> tuple[dict[str, Line], list[str]]:
    """Give all lines with their tests, and what is wrong: unknown ids, comments beside no test."""
    lines, wrong = read_lists(lists), []
    for path in sorted(root.rglob("test_*.py")):
        for named in named_in(path, root):
            where = f"{path.relative_to(root)}:{named.row}"
            if not named.tests:
                wrong.append(f"{where}: {' '.join(named.ids)} stands beside no test")
            for name in named.ids:
                if name not in lines:
                    wrong.append(f"{where}: there is no line {name}")
                    continue
                lines[name].tests += [t for t in named.tests if t not in lines[name].tests]
    return lines, wrong


def main() -> None:
    """Print the lines; always exits 0, since an uncovered line is work to do and not a fault."""
    parser = argparse.ArgumentParser(description="Promise lines and the tests that name them.")
    parser.add_argument("lines", nargs="*", help="A24, a whole list (B), or nothing for all")
    parser.add_argument("--missing", action="store_true", help="only lines that no test names")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    lines, wrong = collect()
    shown = {
        name: line
        for name, line in lines.items()
        if (not args.lines or name in args.lines or name[0] in args.lines) and not (args.missing and line.tests)
    }
    covered = sum(bool(line.tests) for line in lines.values())
    if args.json:
        data = {name: {"text": line.text, "tests": line.tests} for name, line in shown.items()}
        print(json.dumps({"lines": data, "covered": covered, "of": len(lines), "wrong": wrong}, indent=1))
        return
    for name, line in shown.items():
        print(f"{name:<4} {'   ' if line.tests else '-- '}{line.text[:100]}")
        for test in line.tests:
            print(f"         {test}")
    for letter in sorted({name[0] for name in lines}):
        of = [line for name, line in lines.items() if name[0] == letter]
        print(f"{letter}: {sum(bool(line.tests) for line in of)} of {len(of)}", end="   ")
    print(f"all: {covered} of {len(lines)} lines are named by a test")
    for text in wrong:
        print(text, file=sys.stderr)


if __name__ == "__main__":
    main()
