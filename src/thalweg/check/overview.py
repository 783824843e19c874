"""One report on everything: data, lengths, what is trained, packing, balance of ranks, profile, findings.

Decides what stands in it and in which order. Each part is made by the command of its name; nothing is judged here.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from thalweg.check.doctor import examine, judge
from thalweg.check.evidence import Evidence, Words
from thalweg.check.figures import bars, histogram
from thalweg.check.opening import Target, open_target
from thalweg.check.pictures import references, thumbnails
from thalweg.check.profiles import Profile
from thalweg.check.report import Report
from thalweg.check.tokens import View, show_ids, view_sample
from thalweg.core.sample import IGNORE_INDEX
from thalweg.plan import pack
from thalweg.plan.batch import padding_share

SHOWN = 6  # samples shown token by token
PACKED = 200_000  # lengths that are packed to say what a capacity would give


def overview(
    x: Any,
    samples: int = 1000,
    *,
    tokenizer: Any = None,
    profile: Profile | None = None,
    words: Sequence[str] = (),
    **told: Any,
) -> Report:
    """Look at data and give one report on all of it.

    Args:
        x: as `doctor` takes it.
        samples: to look at, at most.
        tokenizer: as `doctor` takes it.
        profile: of a run over the same feed, to be shown beside.
        words: settings over those of a file of settings.
        told: further words of `doctor`: vocab_size, model_kind, generating, max_length.
    """
    target = open_target(x, words)
    if target.kind == "settings":
        name = "train" if "train" in target.thing else next(iter(target.thing))
        tokenizer = target.tokenizer if tokenizer is None else tokenizer
        target = Target(f"{target.title}:{name}", "feed", target.thing[name])
    renamed = {"embedding" if k == "vocab_size" else k: v for k, v in told.items()}
    e = examine(target, samples, tokenizer, renamed)
    report = judge(e)
    report.facts |= _lengths_in_words(e)
    report.figures += _drawn(e)
    report.samples += _samples(e)
    report.pictures = thumbnails([r for r in e.raw[:SHOWN] if any(True for _ in references(r))])
    if profile is not None:
        report.facts["waiting for data"] = f"{profile.waiting_share:.1%} of step time"
        report.figures.append(bars("Share of the time by stage", profile.shares, "%"))
        report.findings += profile.report().findings
    return report


def _lengths_in_words(e: Evidence) -> dict[str, Any]:
    if e.lengths is None or not len(e.lengths):
        return {}
    low, middle, high = np.percentile(e.lengths, [0, 50, 100]).astype(int).tolist()
    return {"length of a sample": f"{low:,} to {high:,} tokens, median {middle:,}"}


def _drawn(e: Evidence) -> list[str]:
    out: list[str] = []
    if e.lengths is not None and len(e.lengths):
        marks = {"row": float(e.capacity)} if e.capacity else {}
        out.append(histogram("Tokens of a sample", e.lengths, marks))
        out.append(_fill(e))
    trained = [float(s.trained.mean()) for s in e.documents if len(s.ids)]
    if trained:
        out.append(histogram("Share of a sample's tokens in the loss, in percent", [100 * t for t in trained]))
    sources = Counter(s.source for s in e.documents)
    if len(sources) > 1:
        tokens = {name: float(sum(len(s.ids) for s in e.documents if s.source == name)) for name in sources}
        out.append(bars("Tokens looked at by source", tokens))
    if e.epochs and len(e.epochs[0]) > 1:
        ranks = {f"rank {n}": float(r.tokens) for n, r in enumerate(e.epochs[0])}
        out.append(bars("Tokens of an epoch by rank, rehearsed", ranks))
    return [svg for svg in out if svg]


def _fill(e: Evidence) -> str:
    """Draw the share of padding that each way of making rows would leave."""
    lengths = np.asarray(e.lengths, np.int64)[:PACKED]
    lengths = lengths[lengths > 0]
    if not len(lengths):
        return ""
    capacity = e.capacity or max(int(lengths.max()), 8 * int(np.median(lengths)))
    fits = lengths[lengths <= capacity]
    rows = len(pack.best_fit(fits, capacity))
    shares = {
        "padded to the longest of all": padding_share(lengths, to=int(lengths.max())),
        "batches of 8, to the longest": padding_share(lengths, 8),
        "batches of 8, sorted": padding_share(np.sort(lengths), 8),
        f"packed into rows of {capacity:,}": 1 - float(fits.sum()) / max(rows * capacity, 1),
    }
    return bars("Share of padding", shares, "%")


def _samples(e: Evidence) -> list[View]:
    words: Words | None = e.words
    decode = words.decode if words is not None and words.reads else show_ids
    some = (e.documents or e.in_rows)[:SHOWN]
    out: list[View] = []
    for s in some:
        labels = np.where(s.trained, s.ids, IGNORE_INDEX)
        out.append(view_sample(s.name, {"input_ids": s.ids, "labels": labels}, decode))
    return out
