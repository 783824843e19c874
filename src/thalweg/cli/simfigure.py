"""The pictures of `thalweg simulate`: shares of sources, work of ranks and bytes, as one self-contained HTML page.

Decides the drawings. The figures come from `feed.simulate`.
"""

from collections.abc import Mapping, Sequence
from html import escape

from thalweg.check.html import STYLE
from thalweg.feed.simulate import Simulation

WIDTH, HEIGHT, LEFT, TOP = 720, 260, 56, 18
RIGHT, BOTTOM = WIDTH - 14, HEIGHT - 34
COLOURS = ("#1f6feb", "#0a6b4f", "#b3261e", "#8a5a00", "#6f42c1", "#0e7490", "#be185d", "#4d7c0f")
STRAGGLER = "Straggler: work of the busiest rank over the mean rank's"
SHOWN = 8  # lines of a picture, shapes of a line; of more the largest


def lines(title: str, values: Mapping[str, Sequence[float]], unit: str = "{:.0%}", low: float | None = None) -> str:
    """Draw one line for each name, over the epoch from left to right, as SVG.

    Args:
        title: what is drawn.
        values: name -> values, all of one number.
        unit: how a value is written.
        low: where the scale begins; None: at the least value.
    """
    chosen = dict(sorted(values.items(), key=lambda item: -sum(item[1]))[:SHOWN])
    every = [v for line in chosen.values() for v in line]
    if not every:
        return ""
    base, top = (min(every) if low is None else low), max(every)
    n = max(len(line) for line in chosen.values())

    def place(i: int, value: float) -> str:
        x = LEFT + (RIGHT - LEFT) * i / max(n - 1, 1)
        return f"{x:.1f},{BOTTOM - (BOTTOM - TOP) * (value - base) / max(top - base, 1e-9):.1f}"

    parts: list[str] = []
    for k, (name, line) in enumerate(chosen.items()):
        colour, points = COLOURS[k % len(COLOURS)], " ".join(place(i, v) for i, v in enumerate(line))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        x = LEFT + 8 + (k % 4) * 165
        parts.append(f'<text x="{x}" y="{HEIGHT - 16 + (k // 4) * 13}" fill="{colour}">{escape(name)}</text>')
    for value in (base, (base + top) / 2, top):
        y = place(0, value).split(",")[1]
        parts.append(f'<text x="{LEFT - 8}" y="{y}" text-anchor="end">{unit.format(value)}</text>')
    box = f'viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}"'
    return f'<h2>{escape(title)}</h2><svg {box} font-size="12" fill="currentColor">{"".join(parts)}</svg>'


def spread_of(result: Simulation) -> str:
    """Say how tokens, bytes and requests differ over the ranks: least to most."""
    (low, _, high), (few, _, many) = result.rank_bytes_range, result.rank_requests_range
    tokens = f"{result.rank_tokens[0]:,} to {result.rank_tokens[2]:,} tokens"
    return f"{tokens}, {low / 1e6:,.1f} to {high / 1e6:,.1f} MB and {few:,} to {many:,} requests a rank"


def shapes_of(result: Simulation) -> str:
    """List the commonest shapes of micro-batches, rows x width, with how many have them."""
    told = [f"{shape} ({n:,})" for shape, n in list(result.shapes.items())[:SHOWN]]
    more = result.distinct_shapes - len(told)
    return ", ".join(told) + f" and {more:,} more" * bool(more) if told else "none"


def _table(results: Sequence[Simulation]) -> str:
    first = ("ranks", "steps", "rows left", "tokens a rank", "padding", "straggler, mean", "straggler, worst step")
    head = "".join(f"<th>{h}</th>" for h in (*first, "MB a rank", "requests", "shapes"))
    rows = "".join(
        f"<tr><td>{r.world:,}</td><td>{r.steps:,}</td><td>{r.left_out:,}</td><td>{r.rank_tokens[0]:,} to "
        f"{r.rank_tokens[2]:,}</td><td>{r.padding:.2%}</td><td>{r.straggler:.3f}</td><td>{r.straggler_worst:.3f}</td>"
        f"<td>{r.rank_bytes / 1e6:,.1f}</td><td>{r.rank_requests:,}</td><td>{escape(shapes_of(r))}</td></tr>"
        for r in results
    )
    return f"<table><tr>{head}</tr>{rows}</table>"


def page(target: str, results: Sequence[Simulation]) -> str:
    """Write the page: the table, shares of tokens over the epoch, the straggler factor and bytes a rank."""
    mixed = len(results[0].shares) > 1
    pictures = [lines("Shares of tokens over the epoch", results[0].shares_over, low=0.0)] * mixed
    factors = {f"{r.world:,} rank" + "s" * (r.world != 1): r.stragglers for r in results if r.stragglers}
    pictures.append(lines(f"{STRAGGLER}, mean of each twentieth of the steps", factors, "{:.2f}", 1.0))
    if len(results) > 1:
        sizes = {"MB of the busiest rank": [r.rank_bytes / 1e6 for r in results]}
        worlds = ", ".join(f"{r.world:,}" for r in results)
        pictures.append(lines(f"Bytes that the busiest rank reads, on {worlds} ranks", sizes, "{:,.0f}", 0.0))
    shares = results[0].shares
    rows = "".join(f"<tr><td>{escape(name)}</td><td>{share:.2%}</td></tr>" for name, share in shares.items())
    told = f"<h2>Shares of tokens</h2><table><tr><th>source</th><th>share</th></tr>{rows}</table>"
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(target)}</title><style>{STYLE}</style>"
        f"<h1>{escape(target)}</h1>{_table(results)}{told * mixed}{''.join(pictures)}</html>"
    )
