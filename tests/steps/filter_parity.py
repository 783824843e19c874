"""Our quality rules beside the datatrove package's, document by document: `python filter_parity.py [DOCUMENTS]`.

Three corpora of real texts: pages and conversations, documentation (docstrings of installed packages), and program
code (their files). The rules are compared with one splitting into words for both sides, so that what remains are the
rules; then each side with its own default, theirs being spaCy's.
"""

import ast
import json
import random
import sys
import sysconfig
from collections import Counter
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from unittest.mock import patch

from thalweg.core.document import Document
from thalweg.steps import (
    C4ParagraphFilter,
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
)
from thalweg.steps.filters.words import sentences_of, words_of

CHAT = Path(__file__).resolve().parents[3] / "shared/data/chat"
OURS = (GopherQualityFilter, GopherRepetitionFilter, FineWebQualityFilter, C4QualityFilter, C4ParagraphFilter)
# They call a word a symbol by a list that lacks some marks, such as a middle dot;
# by the paper a word is not a symbol.
KNOWN = {
    ("GopherQualityFilter", (True, None), "gopher_short_doc"),
    ("GopherQualityFilter", (False, "gopher_below_alpha_threshold"), "gopher_short_doc"),
}
BROKEN = "theirs raises"


@lru_cache
def pages():
    return [json.loads(line)["text"] for line in (CHAT / "c4_demo.jsonl").open()]


def instructions(name="alpaca_en_demo.json"):
    rows = json.loads((CHAT / name).read_text())
    return [f"{r['instruction']}\n{r['input']}\n{r['output']}" for r in rows]


def turns():
    """What people and models said in the other sets."""
    found = [m["content"] for r in json.loads((CHAT / "kto_en_demo.json").read_text()) for m in r["messages"]]
    for row in json.loads((CHAT / "dpo_en_demo.json").read_text()):
        found += [m["value"] for m in [*row["conversations"], row["chosen"], row["rejected"]]]
    return found


def articles():
    """Sections of the encyclopaedia's articles, eight sentences each, one a line."""
    found = []
    for line in (CHAT / "wiki_demo.txt").open():
        sentences = sentences_of(line)
        found += ["\n".join(sentences[k : k + 8]) for k in range(0, len(sentences), 8)]
    return found


@lru_cache
def files(seed=0):
    found = sorted(Path(sysconfig.get_paths()["purelib"]).rglob("*.py"))
    random.Random(seed).shuffle(found)
    return found


@lru_cache
def sources(n=400):
    return _first((path.read_text("utf-8", "ignore")[:4000] for path in files()), n)


@lru_cache
def docstrings(n=400):
    def all_of():
        for path in files(1):
            try:
                tree = ast.parse(path.read_bytes())
            except (SyntaxError, ValueError):
                continue
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
                    text = ast.get_docstring(node) or ""
                    if len(text) >= 200:
                        yield text

    return _first(all_of(), n)


def _first(texts, n):
    found = []
    for text in texts:
        if text.strip():
            found.append(text)
            if len(found) == n:
                break
    return found


def corpora(documents):
    """Three corpora of so many documents together."""
    talk = [*pages(), *articles(), *turns(), *instructions(), *instructions("alpaca_zh_demo.json")]
    talk = list(dict.fromkeys(t for t in talk if t.strip()))[: documents // 3]
    rest = documents - len(talk)
    return {
        "pages and talk": talk,
        "documentation": docstrings(rest // 2),
        "program code": sources(rest - rest // 2),
    }


@contextmanager
def theirs(words=None, sentences=None):
    """Their blocks, with another splitting into words and sentences where it is given."""
    from datatrove.pipeline import filters
    from datatrove.pipeline.filters import (
        c4_filters,
        fineweb_quality_filter,
        gopher_quality_filter,
        gopher_repetition_filter,
    )
    from datatrove.utils.text import split_into_sentences, split_into_words

    words = words or lru_cache(1 << 15)(lambda text: split_into_words(text, "eng"))
    sentences = sentences or lru_cache(1 << 15)(lambda text: split_into_sentences(text, "eng"))
    split = [
        patch.object(module, "split_into_words", lambda text, language: words(text))
        for module in (gopher_quality_filter, gopher_repetition_filter, fineweb_quality_filter)
    ]
    split.append(patch.object(c4_filters, "split_into_sentences", lambda text, language: sentences(text)))
    for change in split:
        change.start()
    try:
        yield filters
    finally:
        for change in split:
            change.stop()


def verdict(result):
    return result if isinstance(result, tuple) else (bool(result), None)


def compare(ours, filters, texts):
    """Give (theirs, ours, text) wherever decision, reason or the text left differ, and where theirs raises."""
    mine, other = ours(), getattr(filters, ours.__name__)()
    different = []
    for text in texts:
        a, b = Document(text, "a"), Document(text, "b")
        got = verdict(mine.filter(a))
        try:
            wanted = verdict(other.filter(b))
        except ZeroDivisionError:  # no line or no word: theirs stops the rank
            different.append(((BROKEN, None), got, text))
            continue
        if (got, a.text) != (wanted, b.text):
            different.append((wanted, got, text))
    return different


def unexplained(ours, different):
    """Leave out what is known: where they raise, and where they call a word a symbol."""
    return [
        (wanted, got, text[:80])
        for wanted, got, text in different
        if wanted[0] != BROKEN and (ours.__name__, wanted, got[1]) not in KNOWN
    ]


def main(documents):
    found = corpora(documents)
    print({name: len(texts) for name, texts in found.items()})
    for words, sentences, title in (
        (words_of, sentences_of, "one splitting for both"),
        (None, None, "each side's own"),
    ):
        print(f"\n{title}")
        with theirs(words, sentences) as filters:
            for ours in OURS:
                for name, texts in found.items():
                    different = compare(ours, filters, texts)
                    kinds = Counter((str(w), str(g)) for w, g, _ in different)
                    other = sum(1 for w, g, _ in different if w[0] != g[0] and w[0] != BROKEN)
                    print(f"{ours.__name__:24s}{name:16s}{len(different):6d} differ, {other} of them in the decision")
                    for (w, g), n in kinds.most_common(6):
                        print(f"{'':40s}{n:6d}  theirs {w}, ours {g}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 20_000)
