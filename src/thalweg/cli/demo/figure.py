"""The demo's picture: losses of the job that ran through and of the one that was killed and continued, as SVG.

Decides a drawing from two lists of numbers. Knows nothing else.
"""

from collections.abc import Sequence

WIDTH, HEIGHT, LEFT, TOP = 720, 260, 48, 18
RIGHT, BOTTOM = WIDTH - 14, HEIGHT - 34


def loss_curves(whole: Sequence[float], continued: Sequence[float], saved: int) -> str:
    """Draw both losses over steps, with a mark where the job was killed.

    Args:
        whole: loss of each step of the uninterrupted job.
        continued: the same for the killed and continued job.
        saved: steps in the checkpoint at which it was killed.
    """
    if not whole or not continued:
        return ""
    low, high = min(*whole, *continued), max(*whole, *continued)
    steps = max(len(whole), len(continued))

    def place(step: float, loss: float) -> tuple[float, float]:
        x = LEFT + (RIGHT - LEFT) * step / max(steps - 1, 1)
        return round(x, 1), round(BOTTOM - (BOTTOM - TOP) * (loss - low) / max(high - low, 1e-9), 1)

    line = " ".join(f"{x},{y}" for x, y in (place(i, loss) for i, loss in enumerate(whole)))
    dots = "".join(
        f'<circle cx="{x}" cy="{y}" r="3.4" fill="{"#0a6b4f" if i >= saved else "#8a94a3"}"/>'
        for i, (x, y) in enumerate(place(i, loss) for i, loss in enumerate(continued))
    )
    cut, _ = place(saved - 0.5, low)
    grid = "".join(
        f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{loss:.1f}</text>'
        f'<line x1="{LEFT}" x2="{RIGHT}" y1="{y}" y2="{y}" stroke="currentColor" stroke-opacity=".12"/>'
        for loss in (low, (low + high) / 2, high)
        for y in [place(0, loss)[1]]
    )
    end = f'<text x="{RIGHT}" y="{HEIGHT - 12}" text-anchor="end">{steps}</text>'
    ends = f'<text x="{LEFT}" y="{HEIGHT - 12}">step 1</text>{end}'
    words = "SIGKILL: 2 ranks, then 1 rank with 2 micro-batches"
    kill = (
        f'<line x1="{cut}" x2="{cut}" y1="{TOP - 8}" y2="{BOTTOM}" stroke="#b3261e" stroke-dasharray="4 4"/>'
        f'<text x="{cut + 8}" y="{TOP + 4}" fill="#b3261e">{words}</text>'
    )
    legend = f'<text x="{LEFT + 8}" y="{BOTTOM - 8}">line: never killed &#183; dots: killed and continued</text>'
    curve = f'<polyline points="{line}" fill="none" stroke="#1f6feb" stroke-width="2"/>'
    box = f'viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="loss over steps"'
    head = f'<svg {box} font-size="13" fill="currentColor">'
    return f"{head}{grid}{curve}{kill}{dots}{ends}{legend}</svg>"
