"""Clips: which frames are taken, from how many there really are.

Decides the sampling rule, a pure function, and that frames are counted in the container's packets, not believed from
its header. Decodes with PyAV. Knows no model.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from thalweg.core.extras import need
from thalweg.encode.errors import EncodeError
from thalweg.encode.media.pictures import picture, picture_size
from thalweg.encode.media.references import Folder, decoding, name_of, unwrapped


@dataclass(frozen=True, slots=True)
class Sampling:
    """How many frames of a clip are taken.

    Args:
        fps: frames a second of the clip's time.
        most: at most so many.
        least: at least so many; a shorter clip repeats frames.
        multiple: the number is a multiple of this (2 for models that join pairs of frames).
    """

    fps: float = 2.0
    most: int = 128
    least: int = 4
    multiple: int = 2


@dataclass(frozen=True, slots=True)
class Clip:
    """What is known of a clip before it is decoded: real frames, frames a second, width and height in pixels."""

    frames: int
    fps: float
    width: int
    height: int

    @property
    def seconds(self) -> float:
        """Duration."""
        return self.frames / self.fps


def choose_frames(frames: int, fps: float | None, rule: Sampling) -> NDArray[np.int64]:
    """Choose the frames of a clip, evenly from the first to the last.

    The count is floor(seconds * rule.fps), at most the frames there are and `rule.most`, at least `rule.least`,
    rounded down to a multiple (up, where that would be none).

    Args:
        frames: real number of frames.
        fps: frames a second of the clip.
        rule: the rule.

    Returns:
        int64 (n,), rising, each in [0, frames); a frame is repeated only where the clip has too few.

    Raises:
        EncodeError: no frames, or a rate that is no rate.
    """
    if frames <= 0:
        raise EncodeError("the clip has no frames", reason="empty clip")
    if fps is None or not 0 < fps < float("inf"):
        raise EncodeError(f"the clip has {fps} frames a second", reason="clip without a rate")
    wanted = frames if fps == rule.fps else int(frames / fps * rule.fps)
    wanted = min(max(1, wanted), frames, rule.most)
    wanted = max(wanted, rule.least)
    wanted = max(rule.multiple, wanted - wanted % rule.multiple)
    if wanted < rule.least:
        wanted += rule.multiple
    return np.linspace(0, frames - 1, wanted).round().astype(np.int64)


class Decoder(Protocol):
    """Opens clips; a test brings its own."""

    def probe(self, reference: Any, folder: Folder) -> tuple[int, float | None, int, int]:
        """Give real frames, frames a second, width, height."""
        ...

    def frames(self, reference: Any, folder: Folder) -> Iterable[Any]:
        """Give PIL images in order."""
        ...


class Av:
    """PyAV: any container and codec that FFmpeg has."""

    def probe(self, reference: Any, folder: Folder) -> tuple[int, float | None, int, int]:
        """Count the packets with data, and the time they take: cheap, and right where a header is not."""
        av = need("av", why="clips")
        with av.open(folder.open(reference)) as container:
            stream = container.streams.video[0]
            ticks = [
                (p.pts, p.duration or 0) for p in container.demux(stream) if p.size
            ]  # not the packets: they hold all
            unit, told = float(stream.time_base or 0), float(stream.average_rate or stream.guessed_rate or 0)
            rate = _rate(told, [(at * unit, lasts * unit) for at, lasts in ticks if at is not None])
            return len(ticks), rate, stream.codec_context.width, stream.codec_context.height

    def frames(self, reference: Any, folder: Folder) -> Iterable[Any]:
        """Decode one by one."""
        av = need("av", why="clips")
        with av.open(folder.open(reference)) as container:
            for frame in container.decode(video=0):
                yield frame.to_image()


def _rate(told: float, times: list[tuple[float, float]]) -> float | None:
    """Give the frames a second by the packets' times, where a header has no rate or one that they contradict.

    Args:
        told: by the header, 0 for none; WebM says 30 or 1,000 of clips whose rate varies.
        times: begin and length of each packet in seconds.
    """
    seconds = max(sum(time) for time in times) - min(at for at, _ in times) if times else 0.0
    if seconds > 0 and (not told or abs(len(times) / seconds / told - 1) > 0.05):
        return len(times) / seconds
    return told or None


def shown(reference: Any) -> list[Any] | None:
    """Give the frames of a clip that is a list of pictures or an array (n, h, w, 3); None for any other."""
    value = unwrapped(reference)
    if isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.ndim == 4):
        return list(cast("Iterable[Any]", value))
    return None


def probe(reference: Any, folder: Folder, decoder: Decoder, rate: float = 1.0) -> Clip:
    """Look at a clip without decoding it. A list of pictures is a clip of `rate` frames a second.

    Raises:
        EncodeError: not there, no clip, no frames, no rate.
    """
    frames: int
    fps: float | None
    pictures = shown(reference)
    if pictures is None:
        with decoding(reference, "clip"):
            frames, fps, width, height = decoder.probe(reference, folder)
    else:
        frames, fps, (width, height) = len(pictures), rate, picture_size(pictures[0], folder) if pictures else (0, 0)
    choose_frames(frames, fps, Sampling())
    assert fps is not None
    return Clip(frames, fps, width, height)


def read_frames(
    reference: Any, folder: Folder, decoder: Decoder, wanted: Sequence[int] | NDArray[np.int64]
) -> list[Any]:
    """Decode the frames of these places; a clip that ends early repeats its last frame, so that the count holds.

    Raises:
        EncodeError: nothing decodes.
    """
    places = [int(i) for i in wanted]
    if (pictures := shown(reference)) is not None:
        return [picture(pictures[i], folder) for i in places]
    kept: dict[int, Any] = {}
    last = None
    needed = set(places)
    with decoding(reference, "clip"):
        for i, frame in enumerate(decoder.frames(reference, folder)):
            last = frame
            if i in needed:
                kept[i] = frame
            if i >= max(places):
                break
    if last is None:
        raise EncodeError(f"{name_of(reference)} decodes to no frame", reason="empty clip")
    return [kept.get(i, last) for i in places]
