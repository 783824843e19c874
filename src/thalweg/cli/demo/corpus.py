"""The demo's raw corpus: real text that every Python machine has, as JSONL files.

Decides what becomes a document. `pages`: the standard library's sources and the README texts of installed packages,
plain text. `chat`: question and answer from real docstrings. The same machine gives the same bytes: files are taken
in sorted order, texts that occur twice are kept once, and nothing depends on a clock or a path. Knows no token.
"""

import ast
import json
import os
import shutil
import sys
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from email import message_from_string
from hashlib import blake2b
from importlib.metadata import distributions
from inspect import cleandoc
from pathlib import Path
from typing import Any, TypeAlias

from thalweg.core.errors import InputError

VERSION = 1  # of the rules below: a corpus of other rules is built again
SHARDS = 16  # files of each corpus; the pipeline's 8 tasks take two each
QUESTIONS = (
    "What does `{name}` do?",
    "What is `{name}` for?",
    "Explain `{name}` to me.",
    "How would you describe `{name}`?",
)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

Text: TypeAlias = tuple[str, str]  # id, text
Say: TypeAlias = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Corpus:
    """A corpus on disk: two folders of JSONL and what went into them."""

    pages: Path
    chat: Path
    files: int
    num_pages: int
    num_chat: int
    left_out: dict[str, int]


def build(folder: Path, say: Say, *, limit: int | None = None) -> Corpus:
    """Write the two corpora below `folder`, or take them as they are when they were written by the same rules.

    Args:
        folder: gets `pages/*.jsonl`, `chat/*.jsonl` and `corpus.json`; appears whole or not at all.
        say: takes lines of progress.
        limit: at most so many source files (evenly spread) and package texts each; None takes all.

    Raises:
        InputError: this Python has no standard library sources.
    """
    stdlib = Path(sysconfig.get_path("stdlib"))
    sources = _spread(_source_files(stdlib), limit)
    if not sources:
        raise InputError("no standard library sources", where=str(stdlib), fix="install Python with its .py files")
    texts = _spread(_package_texts(), limit)
    key = _key(stdlib, sources, texts)
    known = _known(folder, key)
    if known is not None:
        say(f"corpus: {known.num_pages:,} pages and {known.num_chat:,} chats are there already")
        return known
    say(f"corpus: reading {len(sources):,} standard library files and {len(texts):,} package texts")
    left_out: Counter[str] = Counter()
    readable = list(_read(stdlib, sources, left_out))
    draft = folder.with_name(f"{folder.name}.{os.getpid()}.part")
    shutil.rmtree(draft, ignore_errors=True)
    pages = _once([*readable, *texts], "page seen before", left_out)
    num_pages = _write(draft / "pages", ({"id": i, "text": text} for i, text in pages))
    say(f"corpus: {num_pages:,} pages written; now the docstrings")
    chats = _once(_docstrings(readable, left_out), "docstring seen before", left_out)
    num_chat = _write(draft / "chat", (_chat(name, answer) for name, answer in chats))
    say(f"corpus: {num_chat:,} chats written")
    count = len(sources) + len(texts)
    corpus = Corpus(folder / "pages", folder / "chat", count, num_pages, num_chat, dict(left_out))
    (draft / "corpus.json").write_text(json.dumps({"key": key, **asdict(corpus)}, default=str), "utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    draft.rename(folder)
    return corpus


def _known(folder: Path, key: str) -> Corpus | None:
    """Give the corpus that lies in `folder`, if it was made from the same files by the same rules."""
    try:
        facts: dict[str, Any] = json.loads((folder / "corpus.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    if facts.pop("key", None) != key:
        return None
    counts = {name: facts[name] for name in ("files", "num_pages", "num_chat", "left_out")}
    return Corpus(pages=folder / "pages", chat=folder / "chat", **counts)


def _key(stdlib: Path, sources: list[Path], texts: list[Text]) -> str:
    digest = blake2b(repr((VERSION, SHARDS, sys.version)).encode(), digest_size=16)
    for path in sources:
        digest.update(f"{path.relative_to(stdlib)} {path.stat().st_size}\n".encode())
    for name, text in texts:
        digest.update(f"{name} {len(text)}\n".encode())
    return digest.hexdigest()


def _source_files(stdlib: Path) -> list[Path]:
    outside = {"site-packages", "dist-packages", "__pycache__"}
    found = stdlib.rglob("*.py")
    return sorted(path for path in found if not outside.intersection(path.relative_to(stdlib).parts))


def _package_texts() -> list[Text]:
    """Give the README of each installed package (the body of its METADATA), sorted by name."""
    texts: dict[str, str] = {}
    for package in distributions():
        whole = message_from_string(package.read_text("METADATA") or package.read_text("PKG-INFO") or "")
        name, body = whole.get("Name"), whole.get_payload()
        if name and isinstance(body, str) and body.strip():
            readable = body.strip().encode("utf-8", "replace").decode("utf-8")
            texts.setdefault(f"package/{name.lower()}", readable + "\n")
    return sorted(texts.items())


def _read(stdlib: Path, sources: list[Path], left_out: Counter[str]) -> Iterator[Text]:
    for path in sources:
        try:
            text = path.read_bytes().decode("utf-8")
        except (OSError, UnicodeDecodeError):
            left_out["file not UTF-8"] += 1
            continue
        if text.strip():
            yield f"stdlib/{path.relative_to(stdlib).as_posix()}", text
        else:
            left_out["file empty"] += 1


def _docstrings(sources: Iterable[Text], left_out: Counter[str]) -> Iterator[Text]:
    """Give (dotted name, docstring) of every public module, class and function; tests are no documentation."""
    for source, text in sources:
        parts = source.removeprefix("stdlib/").removesuffix(".py").removesuffix("/__init__").split("/")
        if any(part.startswith(("_", "test", "idle_test")) for part in parts):
            continue
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError):
            left_out["source not Python 3"] += 1
            continue
        yield from _of_node(tree, ".".join(parts))


def _of_node(node: ast.AST, name: str) -> Iterator[Text]:
    if not isinstance(node, DOCUMENTED):
        return
    doc = ast.get_docstring(node, clean=False)
    if doc and doc.strip():
        yield name, cleandoc(doc)
    for child in node.body:
        child_name = getattr(child, "name", "_")
        if not child_name.startswith("_"):
            yield from _of_node(child, f"{name}.{child_name}")


def _chat(name: str, answer: str) -> dict[str, Any]:
    pick = int.from_bytes(blake2b(name.encode(), digest_size=2).digest(), "little") % len(QUESTIONS)
    question = QUESTIONS[pick].format(name=name)
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"id": f"docstring/{name}", "text": answer, "messages": messages}


def _once(texts: Iterable[Text], reason: str, left_out: Counter[str]) -> Iterator[Text]:
    """Pass each id and each text once."""
    ids: set[str] = set()
    seen: set[bytes] = set()
    for name, text in texts:
        digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if name in ids or digest in seen:
            left_out[reason] += 1
            continue
        ids.add(name)
        seen.add(digest)
        yield name, text


def _spread(items: list[Any], limit: int | None) -> list[Any]:
    """Take at most `limit` items, evenly spread."""
    if limit is None or len(items) <= limit:
        return items
    return [items[i * len(items) // limit] for i in range(limit)]


def _write(folder: Path, rows: Iterable[dict[str, Any]]) -> int:
    """Deal rows to SHARDS files in turn; returns their number."""
    folder.mkdir(parents=True)
    files = [(folder / f"{shard:02d}.jsonl").open("w", encoding="utf-8") for shard in range(SHARDS)]
    count = 0
    try:
        for row in rows:
            files[count % SHARDS].write(json.dumps(row, ensure_ascii=False) + "\n")
            count += 1
    finally:
        for file in files:
            file.close()
    return count
