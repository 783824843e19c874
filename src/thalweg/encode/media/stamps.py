"""Clips whose time is written as text before each of their steps: what Qwen3-VL reads.

Decides the words, where they stand in a rendering, and how such a clip's frames are sized: by the area of all of them
together. Pure functions on texts and numbers; knows no file.
"""

import math
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from thalweg.encode.errors import EncodeError

Pieces: TypeAlias = list[tuple[str, int | None]]
_SCALES = {"mean": "image_mean", "std": "image_std"}
Word: TypeAlias = tuple[str, int]  # a special token, and its id


@dataclass(frozen=True, slots=True)
class Stamps:
    """How a model takes timed clips.

    Args:
        inside: the steps stand between the two tokens that the template writes around a clip (the processor of
            transformers 5); False: in their place (that of transformers 4).
        least, most: pixels of all frames of a clip together.
        fps, fewest, many: frames a second, and how many at least and at most, where the user says nothing.
        capped: each frame has its own bound too, so that a short clip does not have all the area.
        tokens: that bound, in merged patches.
        mean, std: of each colour, by which the pixels of a clip are scaled.
    """

    inside: bool = True
    least: int = 128 * 32 * 32
    most: int = 768 * 32 * 32
    fps: float = 2.0
    fewest: int = 4
    many: int = 768
    capped: bool = False
    tokens: int = 768
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)

    @classmethod
    def of(cls, told: Mapping[str, Any], transformers: Any) -> "Stamps":
        """Take a model's rule from the settings of its video processor, and from transformers where times are written.

        Args:
            told: the settings; what they do not say is as the defaults.
            transformers: the package.
        """
        size: Mapping[str, int] = told.get("size") or {}
        given: dict[str, Any] = {"least": size.get("shortest_edge"), "most": size.get("longest_edge")}
        names = {"fps": "fps", "fewest": "min_frames", "many": "max_frames", "capped": "cap_pixels_per_frame",
                 "tokens": "max_video_tokens"}  # fmt: skip
        given |= {ours: told.get(theirs) for ours, theirs in names.items()}
        given |= {ours: tuple(told[theirs]) for ours, theirs in _SCALES.items() if told.get(theirs)}
        inside = hasattr(transformers.ProcessorMixin, "get_text_with_replacements")
        return cls(inside, **{k: v for k, v in given.items() if v is not None})

    def resized(self, frames: int, width: int, height: int, factor: int, pair: int) -> tuple[int, int]:
        """Round the size of `frames` frames to multiples of `factor`, their area together within the bounds.

        The rule of the model's video processor. Python's `round` (halves to even) is part of it.

        Returns:
            Height and width in pixels.

        Raises:
            EncodeError: one side is more than 200 times the other.
        """
        if min(height, width) < factor:
            scale = max(factor / height, factor / width)
            height, width = int(height * scale), int(width * scale)
        if max(height, width) > 200 * min(height, width):
            raise EncodeError(f"a clip of {width} x {height} is too narrow", reason="picture ratio too extreme")
        rows, columns = round(height / factor) * factor, round(width / factor) * factor
        counted, most = round(frames / pair) * pair, self.most
        if self.capped:
            most = frames * max(min(self.tokens * factor**2, self.most // frames), int(self.least * 1.05))
        if counted * rows * columns > most:
            shrink = math.sqrt(frames * height * width / most)
            rows = max(factor, math.floor(height / shrink / factor) * factor)
            columns = max(factor, math.floor(width / shrink / factor) * factor)
        elif counted * rows * columns < self.least:
            grow = math.sqrt(self.least / (frames * height * width))
            rows, columns = math.ceil(height * grow / factor) * factor, math.ceil(width * grow / factor) * factor
        return rows, columns


def times(places: Sequence[int], fps: float, pair: int) -> tuple[float, ...]:
    """Give the time in seconds of each step: halfway between its first frame and its last.

    Args:
        places: numbers of the frames that were taken, rising.
        fps: frames a second of the clip.
        pair: frames of a step; the last frame is repeated where it is not full.
    """
    filled = [*places, *[places[-1]] * (-len(places) % pair)]
    return tuple((filled[i] / fps + filled[i + pair - 1] / fps) / 2 for i in range(0, len(filled), pair))


def split(text: str, words: Sequence[Word]) -> Pieces:
    """Cut a text at some special tokens."""
    ids = dict(words)
    return [(t, ids.get(t)) for t in re.split(f"({'|'.join(re.escape(w) for w in ids)})", text) if t]


def stamp(
    pieces: Pieces, clips: Sequence[Sequence[float]], words: tuple[Word, Word, Word], *, inside: bool
) -> tuple[Pieces, "Moves"]:
    """Write the steps of each clip, its time before each, where the template wrote its one token.

    Args:
        pieces: a rendering, cut at its special tokens.
        clips: times of the steps of each clip, in order.
        words: the tokens that open a step, stand for it, and close it.
        inside: see `Stamps`.

    Returns:
        The new pieces, no two of text side by side, and where old characters are among the new.

    Raises:
        EncodeError: other numbers of clips and of their tokens.
    """
    opening, place, closing = words
    found = sum(token == place[1] for _, token in pieces)
    if found != len(clips):
        raise EncodeError(
            f"the template wrote {found} clips where the conversation has {len(clips)}",
            reason="media and placeholders differ",
        )
    out: Pieces = []
    moves = Moves()
    waiting, at = iter(clips), 0
    while at < len(pieces):
        text, token = pieces[at]
        bordered = (
            not inside and token == opening[1] and [t for _, t in pieces[at + 1 : at + 3]] == [place[1], closing[1]]
        )
        if token != place[1] and not bordered:
            _append(out, (text, token))
            moves.keep(len(text))
            at += 1
            continue
        before = sum(len(t) for t, _ in out)
        for seconds in next(waiting):
            for piece in ((f"<{seconds:.1f} seconds>", None), opening, place, closing):
                _append(out, piece)
        taken = 3 if bordered else 1
        moves.replace(sum(len(t) for t, _ in pieces[at : at + taken]), sum(len(t) for t, _ in out) - before)
        at += taken
    return out, moves


def _append(out: Pieces, piece: tuple[str, int | None]) -> None:
    """Put a piece at the end; text goes on where text ends, so that it is encoded as one."""
    if piece[1] is None and out and out[-1][1] is None:
        out[-1] = (out[-1][0] + piece[0], None)
    else:
        out.append(piece)


class Moves:
    """Where the characters of a text are after parts of it were replaced."""

    def __init__(self) -> None:
        self._old, self._new = [0], [0]

    def keep(self, n: int) -> None:
        """Go over n characters that stay."""
        self.replace(n, n)

    def replace(self, old: int, new: int) -> None:
        """Go over characters that others stand for."""
        self._old.append(self._old[-1] + old)
        self._new.append(self._new[-1] + new)

    def __call__(self, spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Move spans whose borders are not within what was replaced."""
        return [(self._at(a), self._at(b)) for a, b in spans]

    def _at(self, place: int) -> int:
        i = bisect_right(self._old, place) - 1
        return self._new[i] + place - self._old[i]
