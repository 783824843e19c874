"""`thalweg simulate`: steps, tokens, padding, bytes and shapes of a feed on any number of ranks, from its table.

Decides the table that is printed. The figures are worked out by `feed.simulate`.
"""

from pathlib import Path
from typing import Any

import click

from thalweg.check.target import load_target
from thalweg.cli.output import counted, html_option, json_option, long_work, print_json, with_settings, words_argument
from thalweg.cli.simfigure import page, shapes_of, spread_of
from thalweg.core.errors import ConfigError
from thalweg.feed.feed import Feed
from thalweg.feed.loader import FeedLoader
from thalweg.feed.simulate import Simulation, simulate


def feed_of(value: Any, target: str) -> Feed:
    """Give the feed that a target names: a feed, or a loader's.

    Raises:
        ConfigError: it is neither.
    """
    if isinstance(value, FeedLoader):
        return value.feed
    if isinstance(value, Feed):
        return value
    raise ConfigError(f"{type(value).__name__} is neither a feed nor a loader", where=target)


@click.command(
    name="simulate",
    help="Work out an epoch of TARGET (file.py:feed, data.yaml) on any number of ranks; no data is read.",
)
@click.argument("target")
@words_argument
@click.option("--world", "worlds", default="1", show_default=True, help="Numbers of ranks, separated by commas.")
@click.option("--accumulation", default=1, show_default=True, help="Micro-batches of a step.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="The loader's seed.")
@click.option("--epoch", type=click.IntRange(0), default=0, show_default=True, help="Which epoch, from 0.")
@html_option
@json_option
def command(
    target: str, words: tuple[str, ...], worlds: str, *, html: Path | None, as_json: bool, **asked: int
) -> None:
    """Print one line for each number of ranks."""
    value = load_target(target, words)
    feed = feed_of(value, target)
    if isinstance(value, FeedLoader):  # its own layout, where the line says nothing else
        asked["accumulation"] = max(asked["accumulation"], value.options.accumulation)
        asked["seed"] = asked["seed"] or value.options.seed
    try:
        numbers = [int(w) for w in worlds.split(",")]
    except ValueError as error:
        raise ConfigError(f"--world {worlds!r} is no list of numbers", fix="--world 8,16,64") from error
    with long_work("working out the table of the feed; functions whose results are not kept yet run once ..."):
        results = simulate(feed, numbers, **asked)
    if html is not None:
        html.write_text(page(target, results), encoding="utf-8")
    if as_json:
        print_json(with_settings([r.to_dict() for r in results], value))
        return
    head = ("ranks", "steps", "rows left", "tokens a rank", "padding", "straggler", "MB a rank", "requests", "shapes")
    click.echo("{:>6} {:>10} {:>10} {:>14} {:>8} {:>9} {:>10} {:>10} {:>7}".format(*head))
    for r in results:
        click.echo(_line(r))
    for r in results:
        if not r.steps:
            click.echo(_no_step(r))
            continue
        click.echo(f"{counted(r.world, 'rank')}, {spread_of(r)}; shapes {shapes_of(r)}")
        if len(r.step_rows) > 1:
            grown = ", then ".join(f"{counted(steps, 'step')} of {counted(rows, 'row')}" for steps, rows in r.step_rows)
            click.echo(f"{counted(r.world, 'rank')}: {grown}")
    shares = results[0].shares
    if len(shares) > 1:
        click.echo("shares of tokens: " + ", ".join(f"{name} {share:.2%}" for name, share in shares.items()))
        over = results[0].shares_over
        for name in shares:
            click.echo(f"  over the epoch, {name}: " + " ".join(f"{s:.1%}" for s in over[name][::4]))


def _no_step(r: Simulation) -> str:
    """Say why an epoch has no step, and what would have one."""
    if not r.rows:
        return f"{counted(r.world, 'rank')}: no step fits: the epoch has no row"
    size = r.step_rows[0][1] if r.step_rows else r.world * r.accumulation
    told = (
        f"{counted(r.world, 'rank')}: no step fits: the epoch has {counted(r.rows, 'row')}, and a step takes {size:,}"
    )
    of_a_rank = size // r.world
    most = r.rows // max(of_a_rank, 1)
    if most:
        return f"{told}; --world {most} or fewer would have one (a rank takes {counted(of_a_rank, 'row')} a step)"
    return f"{told}; a smaller batch or --accumulation would have one (a rank takes {counted(of_a_rank, 'row')} a step)"


def _line(r: Simulation) -> str:
    return (
        f"{r.world:>6,} {r.steps:>10,} {r.left_out:>10,} {r.rank_tokens[1]:>14,.0f} {r.padding:>8.2%}"
        f" {r.straggler:>9.3f} {r.rank_bytes / 1e6:>10,.1f} {r.rank_requests:>10,} {r.distinct_shapes:>7,}"
    )
