"""`thalweg why`: from a step and rank to samples, files and lines, and from a sample to the steps that see it.

Decides what is printed. The plan is read both ways by `feed.rowsof`.
"""

from dataclasses import asdict
from typing import Any

import click

from thalweg.check.target import load_target
from thalweg.cli.output import check_rank, json_option, print_json, with_settings, words_argument
from thalweg.cli.simulate import feed_of
from thalweg.core.errors import ConfigError
from thalweg.core.topology import Topology
from thalweg.feed.feed import Feed
from thalweg.feed.loader import FeedLoader
from thalweg.feed.replay import why_logged
from thalweg.feed.rowsof import MicroRows, Origin, Seen, refuse_stream, why_sample, why_step


@click.command(
    name="why", help="Name the samples of a step of TARGET (file.py:feed, data.yaml), or the steps of a sample."
)
@click.argument("target")
@words_argument
@click.option("--step", type=click.IntRange(0), help="Step of the run, from 0.")
@click.option("--sample", help="Id of a sample.")
@click.option("--rank", default=0, show_default=True)
@click.option("--world", default=1, show_default=True, help="Number of ranks of the run.")
@click.option("--accumulation", default=1, show_default=True)
@click.option(
    "--epochs", default=1, show_default=True, help="Epochs of the run; a sample is looked for in all of them."
)
@click.option("--seed", type=click.IntRange(0), help="The loader's seed; default: 0, or as the ledger says.")
@click.option("--ledger", help="Folder of the run's ledger: a step as it was handed over, whatever the layout was.")
@json_option
def command(target: str, words: tuple[str, ...], as_json: bool, **asked: Any) -> None:
    """Answer one of the two questions."""
    value = load_target(target, words)
    feed = feed_of(value, target)
    refuse_stream(feed)
    if isinstance(value, FeedLoader):  # its own layout, where the line says nothing else
        o = value.options
        asked["accumulation"] = max(asked["accumulation"], o.accumulation)
        asked["seed"] = o.seed if asked["seed"] is None else asked["seed"]
    if (asked["step"] is None) == (asked["sample"] is None):
        raise ConfigError(
            "ask for a step or for a sample", where="thalweg why", fix="--step N --rank R, or --sample ID"
        )
    if asked["ledger"] is not None and asked["step"] is None:
        raise ConfigError("a ledger tells steps", where="thalweg why --ledger", fix="--step N --rank R")
    answer, text = _of_step(feed, asked) if asked["sample"] is None else _of_sample(feed, asked)
    if as_json:
        print_json(with_settings(answer, value))
    else:
        click.echo(text)


def _of_step(feed: Feed, asked: dict[str, Any]) -> tuple[Any, str]:
    if asked["ledger"] is not None:
        found = why_logged(asked["ledger"], feed, asked["step"], asked["rank"], asked["seed"])
    else:
        check_rank(asked["rank"], asked["world"])
        found = why_step(
            feed,
            asked["step"],
            topology=Topology(rank=asked["rank"], world=asked["world"]),
            accumulation=asked["accumulation"],
            seed=asked["seed"] or 0,
            epochs=asked["epochs"],
        )
    return [asdict(m) for m in found], "\n".join(_micro(m) for m in found)


def _micro(m: MicroRows) -> str:
    lines = [f"step {m.step}, epoch {m.epoch}, micro-batch {m.micro}, rank {m.rank}"]
    for i, row in enumerate(m.rows):
        lines += [f"  row {i}  {_origin(o)}" for o in row]
    return "\n".join(lines)


def _origin(o: Origin) -> str:
    place = "" if o.file is None else f"  {o.file}" + ("" if o.line is None else f":{o.line}")
    place += "" if o.row is None else f" row {o.row}"
    source = f"  source {o.source!r}" if o.source else ""
    return f"{o.id}{source}  sample {o.index}{place}"


def _of_sample(feed: Feed, asked: dict[str, Any]) -> tuple[Any, str]:
    named, seen = why_sample(
        feed,
        asked["sample"],
        world=asked["world"],
        accumulation=asked["accumulation"],
        seed=asked["seed"] or 0,
        epochs=asked["epochs"],
    )
    lines = [_origin(o) for o in named] + [_seen(s) for s in seen]
    if not seen:
        lines.append(f"in no step of the first {asked['epochs']} epochs: left out by the tail, a filter or overlong")
    return {"samples": [asdict(o) for o in named], "seen": [asdict(s) for s in seen]}, "\n".join(lines)


def _seen(s: Seen) -> str:
    return f"  step {s.step}, epoch {s.epoch}, micro-batch {s.micro}, rank {s.rank} (row {s.row} of the epoch)"
