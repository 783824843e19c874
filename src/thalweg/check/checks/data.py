"""Checks of the data itself: is it there, whole, of the right kind, said once, and inside the vocabulary.

Decides what of the data is wrong, and from which share on. Each check is one function; none reads anything.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import xxhash

from thalweg.check.checks.check import Check, among, fine, graver
from thalweg.check.dialogue import said, silent
from thalweg.check.evidence import Evidence
from thalweg.check.finding import Finding, Level
from thalweg.core.sample import INPUT_IDS

CONSTANT = 0.98  # share of one value from which a column says nothing
DUPLICATES = 0.001  # share of repeated samples that is mentioned
MARKS = {"image": "<image>", "video": "<video>", "audio": "<audio>"}
MEDIA = tuple(kind + end for kind in MARKS for end in ("", "s"))  # columns that refer to media
REASONS = 3  # different ones that are told
FEW = 20  # samples below which a column cannot be called constant


def there_is_data(e: Evidence) -> Finding | None:
    """See that there is a sample at all."""
    if not e.asked:
        return Finding("error", "there is no sample", fix="check the path, the filters and take or skip")
    return fine("samples were found", looked_at=e.asked, of=e.total if e.total is not None else "unknown")


def samples_can_be_made(e: Evidence) -> Finding | None:
    """See how many samples fail on their way."""
    if not e.asked:
        return None
    if not e.failed:
        return fine("every sample can be read and encoded")
    level: Level = "error" if len(e.failed) / e.asked > e.max_bad else "warning"
    reasons: dict[str, list[tuple[str, str]]] = {}
    for place, error in e.failed:
        reasons.setdefault("".join("0" if c.isdigit() else c for c in error[:80]), []).append((place, error))
    told: list[str] = []
    for same in list(reasons.values())[:REASONS]:
        place, error = same[0]
        found = f"[{place}]" if len(same) == 1 else f"({len(same):,} times, the first [{place}])"
        told.append(error[:200] + f" {found}" * (len(reasons) > 1))
    told += [f"and {len(reasons) - REASONS:,} other reasons"] * (len(reasons) > REASONS)
    where = e.failed[0][0] if len(reasons) == 1 else None
    fix = e.remedy or 'repair them, or say on_error="quarantine" and max_bad='
    what = "samples cannot be made: " + "; ".join(told)
    return Finding(level, what, len(e.failed), e.asked, where, fix, numbers={"allowed": int(e.max_bad * e.asked)})


def batches_can_be_made(e: Evidence) -> Finding | None:
    """See that samples can be put into batches."""
    if e.unbatched:
        what, _, fix = e.unbatched.partition(". Try: ")
        return Finding("error", f"no batch can be made: {what}", fix=fix or "thalweg inspect shows samples")
    return fine("batches can be made", batches=len(e.shapes)) if e.shapes else None


def columns_and_dtypes(e: Evidence) -> Finding | None:
    """See that samples have the same columns, and token ids that are whole numbers in one row."""
    if not e.columns:
        return None
    for number, sample in enumerate(e.columns):
        for name in (INPUT_IDS, "labels", "attention_mask"):
            value = sample.get(name)
            if value is None:
                continue
            try:
                array = np.asarray(value)
            except ValueError:
                array = np.asarray(value, object)
            if array.ndim != 1 or (array.size and array.dtype.kind not in "iub"):
                what = f"column {name!r} holds {array.dtype} of shape {array.shape}, not whole numbers (n,)"
                return Finding(
                    "error", what, where=_place(e.places, number), fix="give token ids as a flat list of integers"
                )
    names = Counter(frozenset(k for k, v in sample.items() if v is not None) for sample in e.columns)
    common = names.most_common(1)[0][0]
    count, of, first = among(frozenset(k for k, v in s.items() if v is not None) != common for s in e.columns)
    needed = {INPUT_IDS, "labels", "loss_spans"} & set().union(*names)
    missing = sum(1 for s in e.columns if any(s.get(k) is None for k in needed))
    if missing:
        what = f"samples lack one of {', '.join(sorted(needed))}"
        return Finding("error", what, missing, of, fix="give every sample the same token columns")
    if count:
        lacking = {n: sum(1 for s in e.columns if s.get(n) is None) for n in sorted(set().union(*names))}
        told = {n: f"{k} without" for n, k in lacking.items() if k}
        return Finding("note", "samples have different columns", count, of, _place(e.places, first), numbers=told)
    return fine("columns and dtypes agree", columns=", ".join(sorted(common)))


def empty_samples(e: Evidence) -> Finding | None:
    """Find samples with nothing in them."""
    if e.documents:
        count, of, first = among(not len(s.ids) for s in e.documents)
        where = e.documents[first].name if count else None
    elif e.raw:
        said = [{k: v for k, v in r.items() if k != "id"} for r in e.raw]
        count, of, first = among(not any(t.strip() for t in texts(r)) and not _filled(r) for r in said)
        where = _place(e.raw_places, first) if count else None
    else:
        return None
    if not count:
        return fine("no sample is empty")
    fix = "drop them: .filter(lambda length: length > 0, columns=['length'])"
    return Finding(graver(count / of, error=0.01), "samples are empty", count, of, where, fix)


def _place(places: Sequence[str], number: int) -> str:
    """Say where a sample is: by its file and line or its id, else by its number among those looked at."""
    return places[number] if number < len(places) else f"sample {number} of those looked at"


def _filled(record: Mapping[str, Any]) -> bool:
    return any(not isinstance(v, str) and v is not None and np.size(np.asarray(v, object)) for v in record.values())


def ids_in_the_table(e: Evidence) -> Finding | None:
    """Find token ids that the embedding table has no row for."""
    rows = e.embedding or (e.words.size if e.words else None)
    some = e.judged
    if not some:
        return None
    count, of, first = among(len(s.ids) and s.ids.min() < 0 for s in some)
    if count and rows is None:
        worst = min(int(s.ids.min()) for s in some if len(s.ids))
        fix = "look how the ids were made: -100 belongs into labels, padding has an own id; of records: thalweg verify"
        return Finding("error", f"token id {worst:,} is no token", count, of, some[first].name, fix)
    if rows is None:
        return None
    low = min((int(s.ids.min()) for s in some if len(s.ids)), default=0)
    high = max((int(s.ids.max()) for s in some if len(s.ids)), default=0)
    count, of, first = among(len(s.ids) and (s.ids.max() >= rows or s.ids.min() < 0) for s in some)
    if count:
        what = f"token ids from {low:,} to {high:,} do not fit to an embedding table of {rows:,} rows"
        fix = "take the tokenizer that the model was trained with, or enlarge the table; of records: thalweg verify"
        return Finding("error", what, count, of, some[first].name, fix)
    if e.words is not None and e.embedding is not None and e.words.size > e.embedding:
        what = f"the tokenizer can give {e.words.size:,} ids, and the embedding table has {e.embedding:,} rows"
        return Finding("warning", what, fix="model.resize_token_embeddings(len(tokenizer))")
    return fine("token ids are inside the table", largest=high, rows=rows)


def beginning_of_text_once(e: Evidence) -> Finding | None:
    """Find samples that begin with two beginning-of-text tokens: the template writes one, the tokenizer another."""
    if e.words is None or e.words.bos is None or not e.judged:
        return None
    bos = e.words.bos
    count, of, first = among(len(s.ids) > 1 and s.ids[0] == s.ids[1] == bos for s in e.judged)
    if not count:
        return fine("no sample begins with two beginning-of-text tokens")
    fix = "encode with add_special_tokens=False where the template writes the token already"
    return Finding("error", "samples begin with two beginning-of-text tokens", count, of, e.judged[first].name, fix)


def padding_is_no_real_token(e: Evidence) -> Finding | None:
    """See whether the padding id is also a token of the texts."""
    words = e.words
    if words is None or words.pad is None or not e.documents:
        return None
    same = "end-of-text" if words.pad == words.eos else "unknown" if words.pad == 0 else ""
    count, of, first = among((s.ids == words.pad).any() for s in e.documents)
    if not count and words.pad != words.eos:
        return fine("the padding id is in no sample", pad_id=words.pad)
    what = "the padding id is also the end-of-text id" if same == "end-of-text" else "the padding id is in the samples"
    fix = "give the tokenizer a padding token of its own; masks made by ids != pad_id hide real tokens"
    return Finding("note" if e.own else "warning", what, count, of, e.documents[first].name, fix)


def media_where_announced(e: Evidence) -> Finding | None:
    """Compare placeholders in the text with the media that a record brings."""
    pairs = [(record, kind) for record in e.raw for kind in MARKS if _announced(record, kind) or _brought(record, kind)]
    if not pairs:
        return None
    wrong = [
        (_announced(r, kind), _brought(r, kind), kind)
        for r, kind in pairs
        if _announced(r, kind) != _brought(r, kind) and _announced(r, kind) > 0
    ]
    if not wrong:
        return fine("placeholders and media agree", samples=len(pairs))
    asked, there, kind = wrong[0]
    what = f"placeholders and media disagree; the first: {asked} {MARKS[kind]} and {there} {kind}s"
    return Finding("error", what, len(wrong), len(pairs), fix="one placeholder for each, in the order of the text")


def _announced(record: Mapping[str, Any], kind: str) -> int:
    return sum(text.count(MARKS[kind]) for text in texts(record))


def _brought(record: Mapping[str, Any], kind: str) -> int:
    value = record.get(f"{kind}s", record.get(kind))
    if value is None:
        return 0
    return len(value) if isinstance(value, list | tuple) else 1


def texts(value: Any) -> Iterator[str]:
    """Give every text inside a record."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from texts(inner)


def said_once(e: Evidence) -> Finding | None:
    """Find samples that come again, inside a source and across sources."""
    if e.documents:
        keys = [
            (xxhash.xxh3_64_intdigest(s.ids.tobytes() + _media(s.raw)), s.source) for s in e.documents if len(s.ids)
        ]
    else:
        contents = filter(None, map(_content, e.raw))
        keys = [(xxhash.xxh3_64_intdigest(text.encode("utf-8", "replace")), "") for text in contents]
    if len(keys) < 2:
        return None
    sources: dict[int, Counter[str]] = {}
    for key, source in keys:
        sources.setdefault(key, Counter())[source] += 1
    inside = sum(sum(c.values()) - len(c) for c in sources.values())
    across = sum(len(c) - 1 for c in sources.values())
    if not inside and not across:
        return fine("no sample comes twice")
    share = (inside + across) / len(keys)
    level = graver(share, error=0.5, warning=DUPLICATES)
    most = max(sum(c.values()) for c in sources.values())
    numbers = {"inside a source": inside, "across sources": across, "most often": most}
    fix = "deduplicate: thalweg.steps has exact and MinHash blocks"
    return Finding(level, "samples come more than once", inside + across, len(keys), None, fix, numbers=numbers)


def _media(record: Mapping[str, Any] | None) -> bytes:
    """Give what tells the media of a record: the same question about other pictures has the same tokens."""
    found = [record[name] for name in MEDIA if name in record] if record is not None else []
    return repr(found).encode("utf-8", "replace") if found else b""


def _content(record: Mapping[str, Any]) -> str:
    """Give the texts of a record end to end; where there is none, its values, the id left out."""
    text = "\0".join(texts(record))
    if text:
        return text
    held = {k: v for k, v in record.items() if k != "id" and v is not None}
    return repr(held) if held else ""


def answers_are_there(e: Evidence) -> Finding | None:
    """Find conversations that cannot be read as such, or in which nobody answers."""
    found = [silent(r) for r in e.raw]
    count, of, first = among(found)
    if not count:
        return fine("conversations have answers") if any(said(r) is not None for r in e.raw) else None
    told = "; ".join(f"{why} ({n:,} times)" for why, n in Counter(filter(None, found)).most_common(REASONS))
    fix = "look at one with thalweg inspect; ChatEncoder's columns= names other columns, tags and roles"
    level = graver(count / of, error=0.5)
    return Finding(level, f"conversations without an answer: {told}", count, of, _place(e.raw_places, first), fix)


def columns_say_something(e: Evidence) -> Finding | None:
    """Find text columns that hold nearly the same value everywhere."""
    if len(e.raw) < FEW:
        return None
    flat: list[str] = []
    for name in dict.fromkeys(k for r in e.raw for k in r):
        values = Counter(repr(r.get(name)) for r in e.raw)
        value, n = values.most_common(1)[0]
        if value not in {"None", "''", "[]"} and n >= CONSTANT * len(e.raw):
            flat.append(f"{name} = {value[:40]}")
    if not flat:
        return fine("no column is constant")
    fix = "make sure that this is meant; a constant prompt or answer teaches nothing"
    return Finding("warning", "columns hold nearly one value: " + "; ".join(flat), None, None, None, fix)


CHECKS = (
    Check("there is data", "data", there_is_data),
    Check("samples can be made", "data", samples_can_be_made),
    Check("batches can be made", "data", batches_can_be_made),
    Check("columns and dtypes", "data", columns_and_dtypes),
    Check("empty samples", "data", empty_samples),
    Check("ids inside the embedding table", "data", ids_in_the_table),
    Check("beginning of text once", "data", beginning_of_text_once),
    Check("padding is no real token", "data", padding_is_no_real_token),
    Check("media where announced", "data", media_where_announced),
    Check("samples come once", "data", said_once),
    Check("answers are there", "data", answers_are_there),
    Check("columns say something", "data", columns_say_something),
)
