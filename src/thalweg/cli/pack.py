"""`thalweg pack`: what packing costs and saves on the lengths of a record set or a feed, computed ahead, no token read.

Decides which policies are compared and how the report reads. The plans are those of `plan.pack`; what is asked of a
feed is worked out by `feed.packreport`.
"""

from time import perf_counter
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from thalweg.check.target import load_target, split_settings, split_target
from thalweg.cli.output import json_option, long_work, print_json, say
from thalweg.cli.packfeed import Asked, feed_result, feed_text
from thalweg.cli.simulate import feed_of
from thalweg.core.errors import ConfigError, RecordsError
from thalweg.plan.labels import count_labels, cut_spans
from thalweg.plan.pack import plan
from thalweg.plan.pack_cut import Loss
from thalweg.plan.pack_report import PackingReport

COMPARED = ("best_fit", "fill", "window_100", "first_fit", "next_fit", "concat_split")
BLOCK = 1 << 20  # documents planned together: bounds the memory, costs less than a row each


@click.command("pack")
@click.argument("target")
@click.option(
    "--capacity", "-c", type=click.IntRange(min=1), help="Tokens of a row; of a feed: instead of what its .pack says."
)
@click.option(
    "--policy",
    "-p",
    "policies",
    multiple=True,
    metavar="POLICY",
    help="Only this one, with all its numbers; may repeat.",
)
@click.option(
    "--overlong",
    type=click.Choice(["drop", "truncate", "split", "alone", "error"]),
    help="What becomes of documents above the capacity; none said: refused where there is one.",
)
@click.option("--align", type=click.IntRange(min=1), default=1, help="Documents take up a multiple of this.")
@click.option("--max-docs", type=click.IntRange(min=1), help="Documents of a row at most.")
@click.option("--by", metavar="COLUMN", help="Shares for each value of this text column, such as source.")
@click.option("--epochs", type=click.IntRange(min=1), default=1, help="Of a feed: count the rows of so many epochs.")
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Of a feed: the loader's seed.")
@json_option
def command(
    *,
    target: str,
    capacity: int | None,
    policies: tuple[str, ...],
    overlong: str | None,
    align: int,
    max_docs: int | None,
    by: str | None,
    epochs: int,
    seed: int,
    as_json: bool,
) -> None:
    """Compare packing policies on the lengths of the record set TARGET, or report on the feed TARGET (file.py:feed).

    Prints rows against the lower bound, fill, documents of a row, what is cut or left out, and how far documents
    move. Of a feed the rows are counted ahead, in parallel, and the counts stay on this machine for its loaders.
    """
    if split_target(target) is not None or split_settings(target) is not None:
        asked = Asked(capacity, policies, overlong, align, max_docs)
        feed = feed_of(load_target(target), target)
        with long_work("working out the lengths of the feed; functions whose results are not kept yet run once ..."):
            result = feed_result(feed, asked, epochs, seed)
        if as_json:
            print_json(result)
        else:
            click.echo("\n".join(feed_text(result, _table)))
        return
    if capacity is None:
        raise ConfigError("a record set does not say how long rows are", where="pack", fix="-c 4096")
    from thalweg.store.records import open_records  # noqa: PLC0415  (pyarrow loads with it)

    records = open_records(target)
    if records.lengths is None:
        raise RecordsError("rows have no input_ids, so no lengths", where=target, fix="encode them first")
    which, names = _values(records, by) if by else (None, [])
    out: list[dict[str, Any]] = []
    for policy in policies or COMPARED:
        if not as_json:
            say(f"planning {len(records):,} documents by {policy} ...")
        words: dict[str, Any] = {"policy": policy, "overlong": overlong, "align": align, "max_docs": max_docs}
        if policy == "concat_split":
            words |= {"overlong": None, "align": 1}
        start = perf_counter()
        report = _reported(records, capacity, words, which, names)
        out.append({"policy": policy, "seconds": round(perf_counter() - start, 3), **report.to_dict()})
    result = {"records": records.path, "fingerprint": records.fingerprint, "padding": _padding(records, capacity)}
    if as_json:
        print_json({**result, "plans": out})
        return
    click.echo("\n".join(_text(result, out, detailed=bool(policies))))


def _reported(
    records: Any, capacity: int, words: dict[str, Any], which: NDArray[np.int64] | None, names: list[str]
) -> PackingReport:
    """Plan in blocks, so that memory is bounded, and add the blocks up."""
    report = PackingReport()
    facts = records.facts
    for first in range(0, len(records), BLOCK):
        part = slice(first, first + BLOCK)

        def kept(rows: NDArray[np.int64], stop: int, first: int = first) -> NDArray[np.int64]:
            if "loss_spans" not in records.schema:
                most: NDArray[np.int64] = np.minimum(facts["label_tokens"][first + rows], stop - 1)
                return most
            spans = records.read(first + rows, ["loss_spans"])["loss_spans"]
            ends = np.full(len(rows), stop)
            counted: NDArray[np.int64] = count_labels(cut_spans(spans, np.zeros_like(ends), ends), ends)
            return counted

        extra: dict[str, Any] = {}
        if words["policy"] != "concat_split":
            extra = {k: facts[k][part] for k in ("label_tokens", "media_tokens") if k in facts} | {"kept_labels": kept}
        lengths = records.lengths[part]
        made = plan(lengths, capacity, **words, **extra)
        report.add(made, lengths, sources=None if which is None else which[part], names=names)
    return report


def _values(records: Any, column: str) -> tuple[NDArray[np.int64], list[str]]:
    """Give the number of each row's value in a text column, and the values."""
    numbers: dict[str, int] = {}
    out = np.empty(len(records), np.int64)
    for first in range(0, len(records), 1 << 16):
        rows = np.arange(first, min(first + (1 << 16), len(records)))
        values = records.read(rows, [column])[column]
        out[rows] = [numbers.setdefault(str(v), len(numbers)) for v in values]
    return out, list(numbers)


def _padding(records: Any, capacity: int) -> dict[str, float]:
    """Give the share of padding without packing."""
    lengths = np.minimum(records.lengths, capacity)
    if not len(lengths):
        return {"to_capacity": 0.0, "to_longest": 0.0}
    tokens, n = int(lengths.sum()), len(lengths)
    return {"to_capacity": 1 - tokens / (n * capacity), "to_longest": 1 - tokens / (n * int(lengths.max()))}


def _text(result: dict[str, Any], plans: list[dict[str, Any]], *, detailed: bool) -> list[str]:
    first = plans[0]
    lines = [
        f"{result['records']}: {first['documents']:,} documents, {first['tokens']:,} tokens",
        f"rows of {first['capacity']:,}; without packing {result['padding']['to_capacity']:.1%} of them is padding",
        "",
    ]
    return lines + _table(plans, detailed=detailed)


def _table(plans: list[dict[str, Any]], *, detailed: bool) -> list[str]:
    """Give one line a plan, and the numbers behind it where asked."""
    head = f"{'policy':14} {'rows':>10} {'over bound':>10} {'fill':>9} {'docs a row':>16}"
    lines = [
        f"{head} {'cut':>8} {'left out':>9} {'lag':>8}",
    ]
    for p in plans:
        d = p["documents_per_row"]
        over = p["rows"] - p["lower_bound"]
        chosen = "" if set(p["policies"]) <= {p["policy"]} else f"  ({', '.join(p['policies'])})"
        lines.append(
            f"{p['policy']:14} {p['rows']:>10,} {over:>+10,} {p['efficiency']:>9.4%}"
            f" {d['p1']:>4}/{d['p50']}/{d['p99']}/{d['max']:<6} {p['cut_documents']:>8,} {p['left_out_share']:>9.2%}"
            f" {p['lag']:>8,}{chosen}"
        )
    lines += ["", "docs a row: 1st, 50th, 99th of a hundred, most · lag: documents that came later and stand before"]
    for p in plans if detailed else []:
        lines += _detail(p)
    return lines


def _detail(p: dict[str, Any]) -> list[str]:
    lines = ["", f"{p['policy']}: lower bound {p['lower_bound']:,} rows, {p['packed_tokens']:,} tokens in rows"]
    loss = Loss({k: (v["documents"], v["tokens"]) for k, v in p["left_out"].items()})
    for reason, (documents, tokens) in loss.reasons.items():
        lines.append(f"  {reason}: {documents:,} documents, {tokens:,} tokens ({tokens / max(p['tokens'], 1):.2%})")
    if not loss.reasons:
        lines.append("  nothing left out")
    for name, s in p["sources"].items():
        share = s["tokens"] / max(p["packed_tokens"], 1)
        lost = f", left out {s['lost_documents']:,} and {s['lost_tokens']:,} tokens" if s["lost_tokens"] else ""
        lines.append(f"  {name}: {s['documents']:,} documents, {s['tokens']:,} tokens ({share:.1%}){lost}")
    return lines
