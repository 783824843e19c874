"""Pictures of a report as SVG text: histograms and bars, without a script and readable on a phone.

Decides bins and drawing. Colours come from the page, so that light and dark follow the reader's system.
"""

from collections.abc import Mapping
from html import escape
from typing import Any

import numpy as np

WIDE, HIGH = 640, 190  # of the drawing; the page scales it down
LEFT, TOP, BOTTOM = 8, 26, 24
BINS = 32


def histogram(title: str, values: Any, marks: Mapping[str, float] | None = None) -> str:
    """Draw how values are spread, on even bins up to the largest.

    Args:
        title: stands over it.
        values: numbers (n,), at least 0.
        marks: name -> value of lines to draw, such as the capacity of a row.
    """
    numbers = np.asarray(values, np.float64)
    if not numbers.size:
        return ""
    shown = {n: float(v) for n, v in (marks or {}).items()}
    top = max(float(numbers.max()), *shown.values(), 1.0) if shown else max(float(numbers.max()), 1.0)
    counts, edges = np.histogram(numbers, BINS, (0.0, top))
    most, each = max(int(counts.max()), 1), (WIDE - 2 * LEFT) / BINS
    inner = HIGH - TOP - BOTTOM
    parts = [_title(title)]
    for i, count in enumerate(counts.tolist()):
        if count:
            tall = max(inner * count / most, 1.0)
            label = f"{edges[i]:,.0f} to {edges[i + 1]:,.0f}: {count:,}"
            parts.append(_box(LEFT + i * each, HIGH - BOTTOM - tall, each - 1, tall, label))
    for name, value in shown.items():
        x = LEFT + (WIDE - 2 * LEFT) * value / top
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HIGH - BOTTOM}" stroke="var(--bad)"/>')
        parts.append(_text(min(x + 4, WIDE - 110), TOP + 10, f"{name} {value:,.0f}"))
    parts += [_text(LEFT, HIGH - 8, "0"), _text(WIDE - LEFT, HIGH - 8, f"{top:,.0f}", end=True)]
    middle = f"{len(numbers):,} values, median {np.median(numbers):,.0f}, mean {numbers.mean():,.0f}"
    parts.append(_text(WIDE / 2, HIGH - 8, middle, middle=True))
    return _svg(title, parts, HIGH)


def counted(lengths: Any) -> dict[str, int]:
    """Count samples by length, in at most ten steps: equal ones, or doubling ones where lengths differ by more than 16.

    Args:
        lengths: int (n,), at least one.

    Returns:
        "16 to 31" -> samples, rising.
    """
    low, high = int(np.min(lengths)), int(np.max(lengths))
    if high >= 16 * max(low, 1):
        edges = [0, *(high >> k for k in range(9, 0, -1) if high >> k), high + 1]
    else:
        edges = sorted({low + (high + 1 - low) * k // 10 for k in range(11)})
    edges = sorted(set(edges))
    counts, _ = np.histogram(lengths, edges)
    return {f"{a:,} to {b - 1:,}": n for a, b, n in zip(edges, edges[1:], counts.tolist(), strict=False)}


def bars(title: str, values: Mapping[str, float], unit: str = "") -> str:
    """Draw one bar for each name.

    Args:
        title: stands over them.
        values: name -> number, at least 0; "%" as unit shows shares.
        unit: written behind the numbers.
    """
    if not values:
        return ""
    most, row = max(*values.values(), 1e-12), 24
    high = TOP + row * len(values) + 8
    parts = [_title(title)]
    for i, (name, value) in enumerate(values.items()):
        y = TOP + row * i
        shown = f"{value:.1%}" if unit == "%" else f"{value:,.0f} {unit}".strip()
        parts.append(_text(LEFT, y + 15, name[:34]))
        parts.append(_box(250, y + 3, max(300 * value / most, 1.0), row - 8, f"{name}: {shown}"))
        parts.append(_text(258 + 300 * value / most, y + 15, shown))
    return _svg(title, parts, high)


def _svg(title: str, parts: list[str], high: float) -> str:
    inner = "".join(parts)
    return f'<svg role="img" aria-label="{escape(title)}" viewBox="0 0 {WIDE} {high:.0f}">{inner}</svg>'


def _title(text: str) -> str:
    return f'<text x="{LEFT}" y="16" font-size="14" font-weight="600" fill="var(--ink)">{escape(text)}</text>'


def _text(x: float, y: float, text: str, *, end: bool = False, middle: bool = False) -> str:
    anchor = ' text-anchor="end"' if end else ' text-anchor="middle"' if middle else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="11" fill="var(--dim)"{anchor}>{escape(text)}</text>'


def _box(x: float, y: float, wide: float, high: float, label: str) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" width="{max(wide, 0.5):.1f}" height="{high:.1f}"'
    return f'<rect {place} fill="var(--water)"><title>{escape(label)}</title></rect>'
