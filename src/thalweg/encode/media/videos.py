"""Clips: which frames are taken, from how many there really are.

Decides the sampling rule, a pure function, and that frames are counted in the container's packets, not believed from
its header. Decodes with PyAV. Knows no model.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from thalweg.core.extras import need
from thalweg.encode.errors import EncodeError
from thalweg.encode.media.references import Folder, name_of


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
    wanted = min(max(1, int(frames / fps * rule.fps)), frames, rule.most)
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
        """Count the packets with data: cheap, and right where a header is not."""
        av = need("av", why="clips")
        try:
            with av.open(folder.open(reference)) as container:
                stream = container.streams.video[0]
                packets = sum(1 for packet in container.demux(stream) if packet.size)
                rate = stream.average_rate or stream.guessed_rate
                return packets, float(rate) if rate else None, stream.codec_context.width, stream.codec_context.height
        except (OSError, IndexError, ValueError) as error:
            raise EncodeError(
                f"{name_of(reference)} is no readable clip: {error}", reason="clip not readable"
            ) from error

    def frames(self, reference: Any, folder: Folder) -> Iterable[Any]:
        """Decode one by one."""
        av = need("av", why="clips")
        with av.open(folder.open(reference)) as container:
            for frame in container.decode(video=0):
                yield frame.to_image()


def probe(reference: Any, folder: Folder, decoder: Decoder) -> Clip:
    """Look at a clip without decoding it. A list of pictures is a clip at one frame a second.

    Raises:
        EncodeError: not there, no clip, no frames, no rate.
    """
    frames, fps, width, height = decoder.probe(reference, folder)
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
    kept: dict[int, Any] = {}
    last = None
    needed = set(places)
    for i, frame in enumerate(decoder.frames(reference, folder)):
        last = frame
        if i in needed:
            kept[i] = frame
        if i >= max(places):
            break
    if last is None:
        raise EncodeError(f"{name_of(reference)} decodes to no frame", reason="empty clip")
    return [kept.get(i, last) for i in places]
