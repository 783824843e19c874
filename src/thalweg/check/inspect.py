"""Show what the model will see: samples or rows of whatever holds them, token by token.

Decides what is looked at (records, a feed, a loader, `file.py:name`) and which rows. Nothing is consumed, no worker
starts, no model is loaded. How tokens become text is the business of `tokens`, how a report looks of `terminal`.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from thalweg.check.columns import figures, out_of_place, plainly_wrong
from thalweg.check.figures import counted, histogram
from thalweg.check.finding import Finding
from thalweg.check.opening import must_exist
from thalweg.check.pictures import thumbnails
from thalweg.check.report import Report
from thalweg.check.rows import positions_of, real_tokens
from thalweg.check.target import load_target, split_target
from thalweg.check.tokens import Decode, View, show_ids, view_row, view_sample
from thalweg.check.words import encoder_of, tokenizer_of
from thalweg.core.errors import ConfigError, InputError
from thalweg.core.sample import IGNORE_INDEX, INPUT_IDS
from thalweg.core.topology import Topology

LOOKED_AT = 2_000_000  # lengths that a histogram is made of, at most about
NO_TOKENIZER = Finding(
    "note",
    "no tokenizer is known here, so token ids are shown",
    fix="give tokenizer= (on the command line --tokenizer)",
)


def inspect(
    x: Any,
    step: int | None = None,
    rank: int = 0,
    n: int = 3,
    *,
    world: int = 1,
    row: int | None = None,
    tokenizer: Any = None,
) -> Report:
    """Show samples or rows with their labels.

    Args:
        x: records, a feed, a loader, the path of a record set, or "file.py:name".
        step: optimiser step to show, from 0, of a feed; None shows the first rows.
        rank: data-parallel rank whose rows are shown, 0 <= rank < world.
        n: samples or rows at most.
        world: data-parallel ranks that `step` counts for.
        row: row of a record set to begin with.
        tokenizer: folder, hub name or object that turns ids into text; None takes the encoder's of the feed or the
            recorded one.

    Returns:
        A report: `print` it, `.html()`, `.to_dict()`; a notebook shows it by itself.

    Raises:
        InputError: nothing is there, or not that many rows.
        ConfigError: it cannot be looked at, or `step` or `row` does not fit to what it is.
    """
    if n < 1:
        raise ConfigError(f"n must be at least 1, not {n}", where="inspect", fix="ask for one sample or more")
    title, thing = _open(x)
    if hasattr(thing, "stages"):
        return _of_feed(title, thing, step=step, topology=Topology(rank, world), n=n, tokenizer=tokenizer)
    if hasattr(thing, "lengths") and hasattr(thing, "fingerprint"):
        if step is not None:
            raise ConfigError(
                "records have rows, not steps", where=title, fix="ask for row= (--row), or inspect a feed"
            )
        return _of_records(title, thing, row or 0, n, tokenizer)
    if hasattr(thing, "peek") and hasattr(thing, "state_dict"):
        if step is not None:
            topology = Topology(rank, world)
            return _of_feed(
                title, thing.feed, step=step, topology=topology, n=n, tokenizer=tokenizer, options=thing.options
            )
        return _of_loader(title, thing, n, tokenizer)
    fix = "give records, a feed, a loader, the path of a record set, or file.py:name"
    raise ConfigError(f"this holds no samples to look at: {type(thing).__name__}", where=title, fix=fix)


def _open(x: Any) -> tuple[str, Any]:
    """Give a title and the thing itself."""
    if not isinstance(x, str | os.PathLike):
        return type(x).__name__, x
    path = os.fspath(cast("os.PathLike[str]", x))
    if split_target(path) is not None or path.endswith(".py"):
        return path, load_target(path)
    if "://" not in path:
        must_exist(Path(path))
        if Path(path).is_file():
            fix = f"make a feed of it and inspect that: feed = tw.from_files({path!r})"
            raise InputError("a file is not a record set", where=path, fix=fix)
    from thalweg.store.records import open_records  # noqa: PLC0415 (pyarrow loads here, not before)

    return path, open_records(path)


def _of_records(title: str, records: Any, row: int, n: int, tokenizer: Any) -> Report:
    total = len(records)
    if not 0 <= row < max(total, 1):
        raise InputError(f"no row {row}: there are {total:,}", where=title, fix=f"ask for 0 to {total - 1}")
    decode = _decoder(tokenizer, records.lineage)
    columns = ", ".join(f"{name} {kind}" for name, kind in records.schema.items())
    facts: dict[str, Any] = {"rows": total, "columns": columns}
    some = None if records.lengths is None else records.lengths[:: max(1, total // LOOKED_AT)]
    if some is not None:
        facts |= {"tokens": int(records.num_tokens), **_spread(some, total)}
        if "label_tokens" in records.facts and records.num_tokens:
            facts["share in the loss"] = f"{np.sum(records.facts['label_tokens']) / records.num_tokens:.1%}"
    facts["fingerprint"] = records.fingerprint
    report = Report(title, facts)
    if some is not None and len(some):
        report.lengths = counted(some)
        report.figures.append(histogram("Tokens of a sample", some))
    picks = np.arange(row, min(row + n, total))
    for index, name in zip(picks.tolist(), records.ids(picks), strict=True):
        sample = records[index]
        report.samples.append(_sample_view(f"row {index}, {name}", sample, decode))
        report.findings += out_of_place(f"row {index}, {name}", sample)
    return _told(report, decode)


def _spread(lengths: NDArray[np.int32], total: int) -> dict[str, Any]:
    if not len(lengths):
        return {}
    low, middle, high = np.percentile(lengths, [0, 50, 100]).astype(int).tolist()
    told = f"{low:,} to {high:,} tokens, median {middle:,}"
    return {"length of a sample": told + f" (of {len(lengths):,} looked at)" * (len(lengths) < total)}


def _of_feed(
    title: str, feed: Any, *, step: int | None, topology: Topology, n: int, tokenizer: Any, options: Any = None
) -> Report:
    decode = _decoder(tokenizer, {}, feed)
    facts: dict[str, Any] = {"kind": feed.kind, "stages": " -> ".join(map(str, feed.stages))}
    if feed.why is not None:
        facts["why"] = feed.why
    report = Report(title, facts)
    if step is None:
        items = feed.peek(n)
    else:
        facts |= {"step": step, "rank": f"{topology.dp_rank} of {topology.dp_size}"}
        items = _step(feed, step, topology, options)
    for number, item in enumerate(items):
        report.samples += _item_views(item, decode, f"batch {number}, " if len(items) > 1 else "")
        report.findings += out_of_place(str(item.get("id", "sample")), item) if isinstance(item, Mapping) else []
    del report.samples[n:]
    _first_look(report, items[:1])
    report.pictures = _pictures(feed, n)
    return _told(report, decode)


def _first_look(report: Report, items: Sequence[Any]) -> None:
    """Add the columns of the first item, and what is plainly wrong with it."""
    if not items:
        report.findings.append(Finding("error", "there is nothing", fix="look at the filters, at take and skip"))
        return
    report.facts |= figures(items[0])
    report.findings += plainly_wrong(items[0])


def _pictures(feed: Any, n: int) -> list[str]:
    """Give the pictures of the first samples, where they have some."""
    if _read_once(feed):
        return []
    records = [r for r in feed.peek(n, after="source") if isinstance(r, Mapping)]
    media = getattr(encoder_of(feed), "media", None)
    return thumbnails(records, None if media is None else media.folder.root)


def _read_once(feed: Any) -> bool:
    """Say whether a source can be read only once: a look at its records would use it up."""
    head = feed.stages[0]
    return hasattr(getattr(head, "make", None), "__next__") or any(_read_once(p) for _, p in getattr(head, "feeds", ()))


def _step(feed: Any, step: int, topology: Topology, options: Any) -> list[Any]:
    """Give the micro-batches of one step on one rank, by running the loader up to it."""
    from thalweg.bind.loader import Loader  # noqa: PLC0415 (heavy; only for a step)

    seed, accumulation = (0, 1) if options is None else (options.seed, options.accumulation)
    loader = Loader(
        feed, topology=topology, workers=0, return_tensors="np", seed=seed, gradient_accumulation_steps=accumulation
    )
    try:
        steps = len(loader) // accumulation if feed.kind == "planned" else None
        if steps is None or 0 <= step < steps:
            for batch in loader:
                if batch.info.step == step:
                    return [batch]
                if batch.info.step > step:
                    break
            steps = loader.step
    finally:
        loader.close()
    what = f"no step {step}: on {topology.dp_size} rank{'s' * (topology.dp_size > 1)} an epoch has {steps:,} steps"
    raise InputError(what, where="inspect", fix=f"ask for 0 to {steps - 1:,}" if steps else "a smaller batch has one")


def _of_loader(title: str, loader: Any, n: int, tokenizer: Any) -> Report:
    decode = _decoder(tokenizer, {}, getattr(loader, "feed", None))
    report = Report(title, {"step": loader.step, "epoch": loader.epoch})
    batch = loader.peek()
    report.samples += _item_views(batch, decode)[:n]
    _first_look(report, [batch])
    return _told(report, decode)


def _item_views(item: Any, decode: Decode, batch: str = "") -> list[View]:
    """Show a batch row by row, or one sample; `batch` says which of several."""
    if not isinstance(item, Mapping):
        raise ConfigError(f"this cannot be shown: {type(item).__name__}", where="inspect", fix='use collate="hf"')
    values = cast("Mapping[str, Any]", item)
    tokens = values.get(INPUT_IDS)
    if tokens is None or np.ndim(tokens) < 2:
        return [_sample_view(str(values.get("id", "sample")), dict(values), decode)]
    info = getattr(item, "info", None)
    ids: Sequence[Sequence[str]] = info.ids if info is not None else []
    return [_row_view(values, r, ids[r] if r < len(ids) else [], decode, f"{batch}row {r}") for r in range(len(tokens))]


def _sample_view(title: str, sample: dict[str, Any], decode: Decode) -> View:
    if INPUT_IDS in sample:
        return view_sample(title, sample, decode)
    text = "\n".join(f"{name}: {value}" for name, value in sample.items())
    return View(title, (), text)


def _row_view(batch: Mapping[str, Any], row: int, ids: Sequence[str], decode: Decode, title: str) -> View:
    tokens = np.asarray(batch[INPUT_IDS][row])
    labels = np.asarray(batch["labels"][row]) if "labels" in batch else np.full(len(tokens), IGNORE_INDEX)
    packed = batch.get("attention_mask") is None
    all_positions = positions_of(batch) if packed else None
    positions = None if all_positions is None else all_positions[row]
    real = np.asarray(batch["attention_mask"][row]).astype(bool) if batch.get("attention_mask") is not None else None
    if real is None and positions is not None:
        real = real_tokens(tokens, labels, positions)
    shown = ", ".join(ids[:4]) + (f" and {len(ids) - 4} more" if len(ids) > 4 else "")
    return view_row(f"{title}: {shown}", tokens, labels=labels, positions=positions, real=real, decode=decode)


def _decoder(tokenizer: Any, lineage: Mapping[str, Any], feed: Any = None) -> Decode:
    """Find what turns ids into text; ids themselves where there is no tokenizer."""
    found = tokenizer_of(tokenizer, lineage, feed)
    return show_ids if found is None else found.decode


def _told(report: Report, decode: Decode) -> Report:
    if decode is show_ids and any(view.num_tokens for view in report.samples):
        report.findings.append(NO_TOKENIZER)
    return report
