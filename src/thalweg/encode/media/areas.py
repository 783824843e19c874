"""Sizes in pixels: scaled into an area, and rounded to whole patches.

Pure functions; they know no picture and no model.
"""

import math

from thalweg.encode.errors import EncodeError


def fit_area(width: int, height: int, most: int | None = None, least: int | None = None) -> tuple[int, int]:
    """Scale a size into an area, aspect kept, no side below 1.

    Args:
        width, height: pixels.
        most: largest area; None: any.
        least: smallest area; None or 0: any.
    """
    area = width * height
    scale = 1.0
    if most and area > most:
        scale = math.sqrt(most / area)
    elif least and area < least:
        scale = math.sqrt(least / area)
    if scale == 1.0:
        return width, height
    rounded = math.floor if scale < 1 else math.ceil
    return max(1, rounded(width * scale)), max(1, rounded(height * scale))


def smart_resize(height: int, width: int, factor: int, least: int, most: int) -> tuple[int, int]:
    """Round a size to multiples of `factor` within an area, aspect kept as well as that allows.

    The rule of the Qwen-VL image processors. Python's `round` (halves to even) is part of it.

    Raises:
        EncodeError: one side is more than 200 times the other.
    """
    if max(height, width) > 200 * min(height, width):
        raise EncodeError(f"a picture of {width} x {height} is too narrow", reason="picture ratio too extreme")
    rows, columns = round(height / factor) * factor, round(width / factor) * factor
    if rows * columns > most:
        shrink = math.sqrt(height * width / most)
        rows = max(factor, math.floor(height / shrink / factor) * factor)
        columns = max(factor, math.floor(width / shrink / factor) * factor)
    elif rows * columns < least:
        grow = math.sqrt(least / (height * width))
        rows, columns = math.ceil(height * grow / factor) * factor, math.ceil(width * grow / factor) * factor
    return rows, columns
