"""Is my data right? Looks at anything that holds training data, and gives a verdict a check.

Decides what evidence is gathered from which kind of target, and how verdicts become a report. Consumes nothing of a
thalweg loader, makes no cache and starts no worker. What is right is the business of `checks`.
"""

from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import chain
from typing import Any

import numpy as np

from thalweg.check.checks.table import ALL
from thalweg.check.dialogue import is_talk
from thalweg.check.evidence import Evidence
from thalweg.check.finding import Finding
from thalweg.check.foreign import of_loaders, segment_of
from thalweg.check.gather import Gathered, gather, parted
from thalweg.check.opening import Target, open_target
from thalweg.check.rehearse import rehearsal, rehearse
from thalweg.check.report import Report
from thalweg.check.words import encoder_of, tokenizer_of, words_of
from thalweg.core.errors import ConfigError, ThalwegError
from thalweg.core.sample import INPUT_IDS
from thalweg.feed import stages as st
from thalweg.feed.feed import Feed
from thalweg.feed.held import bytes_of

FIRST = 100  # records of which one must be readable, to see how they are encoded
LEVELS = ("error", "warning", "note", "ok")


def doctor(
    x: Any,
    samples: int = 1000,
    *,
    tokenizer: Any = None,
    vocab_size: int | None = None,
    model_kind: str | None = None,
    generating: bool = False,
    max_length: int | None = None,
    words: Sequence[str] = (),
) -> Report:
    """Check data for what a veteran looks for when loss does not fall.

    Args:
        x: records, a feed, a loader, a path (record set, raw file, settings), "file.py:name"; or what other libraries
            give: a DataLoader, a list of batches, a list of loaders (one a rank), a map-style data set.
        samples: samples to look at, at most, spread evenly.
        tokenizer: folder, hub name or object; None takes the encoder's of the feed or the recorded one. With a raw
            file of conversations or text, samples are encoded with it.
        vocab_size: rows of the model's embedding table.
        model_kind: "decoder" | "encoder-decoder"; None where it does not matter.
        generating: batches are prompts to be continued.
        max_length: tokens at which samples were cut.
        words: settings over those of a file of settings, such as "train.batch.size=2".

    Returns:
        A report; `ok` is False where a finding is an error.

    Raises:
        InputError: nothing is there.
        ConfigError: it cannot be looked at.
    """
    if samples < 1:
        raise ConfigError(f"samples must be at least 1, not {samples}", where="doctor", fix="look at one or more")
    if model_kind not in {None, "decoder", "encoder-decoder"}:
        raise ConfigError(f"model_kind={model_kind!r} is unknown", where="doctor", fix='"decoder" or "encoder-decoder"')
    target = open_target(x, words)
    told = {"embedding": vocab_size, "model_kind": model_kind, "generating": generating, "max_length": max_length}
    if target.kind == "settings":
        tokenizer = target.tokenizer if tokenizer is None else tokenizer
        parts = [(n, examine(Target(n, "feed", f), samples, tokenizer, told)) for n, f in target.thing.items()]
        return together(target.title, parts)
    return judge(examine(target, samples, tokenizer, told))


def examine(target: Target, samples: int, tokenizer: Any, told: Mapping[str, Any]) -> Evidence:
    """Gather the evidence of a target."""
    e = Evidence(target.title, **{k: v for k, v in told.items() if v is not None})
    if target.kind == "loaders":
        e.words = words_of(tokenizer_of(tokenizer, {}), {})
        of_loaders(e, target.thing, samples)
        return e
    seed = 0
    feed = target.thing
    if target.kind == "loader":
        feed, seed = target.thing.feed, target.thing.options.seed
    elif target.kind == "records":
        feed = import_module("thalweg.feed.open").from_records(target.thing)
    elif target.kind == "raw" and tokenizer is not None:
        feed = _encoded(feed, tokenizer)
    _of_feed(e, feed, samples, tokenizer, seed)
    return e


def _encoded(feed: Feed, tokenizer: Any) -> Feed:
    """Encode a raw file as its layout says: conversations as chat, a text column as text."""
    first = _first(feed)
    if first is None or INPUT_IDS in first:
        return feed
    chat, text = import_module("thalweg.encode.chat"), import_module("thalweg.encode.text")
    if is_talk(first):
        return feed.map(chat.ChatEncoder(tokenizer))
    if "text" in first:
        return feed.map(text.TextEncoder(tokenizer))
    return feed


def _first(feed: Feed) -> dict[str, Any] | None:
    """Give the first record that can be read; one that can't is counted with the rest."""
    for i in range(min(feed.num_rows, FIRST)):
        try:
            sample: dict[str, Any] = feed.at(i)
        except ThalwegError:
            continue
        return sample
    return None


def _of_feed(e: Evidence, feed: Feed, samples: int, tokenizer: Any, seed: int) -> None:
    e.own = True
    sources, made_by = parted(feed)
    head = feed.stages[0]
    if isinstance(head, st.Mix):
        e.weights = {name: float(w) for name, w in head.schedule[0][1]}
    share = max(samples // max(len(sources), 1), 1)
    parts = [gather(name, stages, share) for name, stages in sources]
    lineage = next((p.source.lineage for p in parts if p.source is not None), {})
    e.words = words_of(tokenizer_of(tokenizer, lineage, feed), lineage)
    if e.embedding is None and isinstance(lineage.get("embedding_rows"), int):
        e.embedding = lineage["embedding_rows"]
    _tell(e, feed, made_by)
    for part in parts:
        _take(e, part)
    _lengths(e, parts)
    rehearsed = rehearsal(feed, parts, made_by)
    if rehearsed is not None:
        rehearse(e, rehearsed, seed=seed)


def _tell(e: Evidence, feed: Feed, made_by: Sequence[st.Stage]) -> None:
    """Write down what the feed says of itself."""
    encoder = encoder_of(feed)
    if encoder is not None:
        e.encoder = next((str(s)[:80] for s in chain(feed.stages) if getattr(s, "fn", None) is encoder), "")
        e.train_on = getattr(getattr(encoder, "drawer", encoder), "train_on", None)
        e.max_length = e.max_length or getattr(encoder, "max_length", None)
    e.repeats = _repeats(feed)
    pack = next((s for s in made_by if isinstance(s, st.Pack)), None)
    if pack is not None:
        e.capacity = pack.capacity if isinstance(pack.capacity, int) else max(pack.capacity)
        e.overlong = "split" if pack.policy == "concat_split" else pack.overlong
    e.cached = any(isinstance(s, st.Cache) for s in feed.stages)
    e.shuffled = any(isinstance(s, st.Shuffle) for s in feed.stages)
    rules = [s.max_bad for s in feed.stages if isinstance(s, st.Map) and s.on_error != "raise"]
    if rules:
        e.max_bad = max(r if r <= 1 and isinstance(r, float) else r / max(e.asked, 100) for r in rules)


def _repeats(feed: Feed) -> bool:
    """Say whether a sample may come more than once in an epoch."""
    head = feed.stages[0]
    inner = [part for _, part in getattr(head, "feeds", ())]
    rule = getattr(head, "on_exhausted", "stop_first")
    return rule != "stop_first" or any(isinstance(s, st.Repeat) for f in (feed, *inner) for s in f.stages)


def _take(e: Evidence, part: Gathered) -> None:
    """Add the samples of one source."""
    e.asked += part.asked
    e.total = None if part.total is None or (e.total is None and e.asked > part.asked) else (e.total or 0) + part.total
    e.failed += part.failed
    e.remedy = e.remedy or part.remedy
    for name, seconds in part.seconds.items():
        e.seconds[name] = e.seconds.get(name, 0.0) + seconds
    for t in part.taken:
        raw = t.raw if part.mapped or INPUT_IDS not in t.raw else None
        if raw is not None:
            e.raw.append(raw)
            e.raw_places.append(t.place)
        e.columns.append(t.sample)
        e.places.append(t.place)
        if t.sample.get(INPUT_IDS) is not None:
            e.segments.append(segment_of(t.place, t.sample, raw=raw, source=part.name))
    sizes = [bytes_of(t.sample) for t in part.taken]
    if sizes:
        e.sample_bytes = max(e.sample_bytes, sum(sizes) / len(sizes))


def _lengths(e: Evidence, parts: Sequence[Gathered]) -> None:
    """Take the lengths of all samples where the sources know them, else of those looked at."""
    known = [p.source.lengths for p in parts if p.source is not None and not p.mapped]
    if known and len(known) == len(parts) and all(k is not None for k in known):
        e.lengths = np.concatenate([np.asarray(k) for k in known])
    elif e.segments:
        e.lengths = np.array([len(s.ids) for s in e.segments], np.int64)


def judge(e: Evidence, group: str = "") -> Report:
    """Ask every check, in the order of suspicion."""
    report = Report(e.title, _facts(e))
    for check in ALL:
        verdict = check(e)
        if verdict is not None:
            report.verdicts.append((f"{group}{check.group}", verdict))
    report.findings = _worst_first([v for _, v in report.verdicts])
    return report


def together(title: str, parts: Sequence[tuple[str, Evidence]]) -> Report:
    """Put the reports of several feeds into one."""
    report = Report(title, {"feeds": ", ".join(name for name, _ in parts)})
    for name, evidence in parts:
        report.verdicts += judge(evidence, f"{name}: ").verdicts
    report.findings = _worst_first([v for _, v in report.verdicts])
    return report


def _worst_first(verdicts: Sequence[Finding]) -> list[Finding]:
    return sorted((v for v in verdicts if v.level != "ok"), key=lambda v: LEVELS.index(v.level))


def _facts(e: Evidence) -> dict[str, Any]:
    facts: dict[str, Any] = {"samples looked at": e.asked}
    if e.total is not None:
        facts["samples"] = e.total
    some = e.documents or e.in_rows
    tokens = sum(len(s.ids) for s in some)
    if tokens:
        facts["tokens looked at"] = tokens
        facts["share in the loss"] = f"{sum(int(s.trained.sum()) for s in some) / tokens:.1%}"
    elif e.raw:
        columns = ", ".join(e.raw[0])
        why = "say tokenizer= (--tokenizer DIR)" if e.words is None else f"no known layout has the columns {columns}"
        facts["tokens"] = f"none, so masks, lengths and order are not judged: {why}"
    if e.shapes:
        facts["batches looked at"] = len(e.shapes)
    return facts
