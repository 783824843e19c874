"""Sounds: length from the header, and samples as mono float32 at the model's rate.

Decides that the header's length is the length: what decodes to a few samples more or fewer is cut or filled with
silence, so that counts and features agree. What soundfile does not read, such as AAC or the sound of a clip, PyAV does.
Knows no model.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.core.extras import need
from thalweg.encode.errors import EncodeError
from thalweg.encode.media.references import Folder, decoding, name_of, unwrapped

# middle and largest of the samples of each width, as they stand in files
_WIDTHS = {"uint8": (128, 2**7), "int16": (0, 2**15), "int32": (0, 2**31)}
LOUDEST = 2.0**32  # above all whole numbers that a file may hold; a spectrum of larger ones overflows
LONGEST = 86_400  # seconds; a sound that claims more is refused, as a picture that claims too many pixels


def sound_length(reference: Any, folder: Folder, rate: int) -> int:
    """Count the samples of a sound at `rate`, from its header.

    Args:
        reference: path, URL, bytes, {"path", "bytes"}, {"array": (n,), (n, channels) or (channels, n) of floats, or of
            integers of 8, 16 or 32 bits, "sampling_rate": int}.
        folder: where paths start.
        rate: samples a second.

    Raises:
        EncodeError: not there, no sound, an empty one, or one that claims more than a day.
    """
    if _is_array(reference):
        array, its_rate = _array(reference, rate)
        frames = len(array)
    else:
        frames, its_rate = _header(reference, folder)
    if frames <= 0 or its_rate <= 0:
        raise EncodeError(f"{name_of(reference)} holds no sound", reason="empty sound")
    if frames > LONGEST * its_rate:
        raise EncodeError(f"{name_of(reference)} claims {frames / its_rate:.0f} s of sound", reason="sound too long")
    return -(-frames * rate // its_rate)


def samples(reference: Any, folder: Folder, rate: int) -> NDArray[np.float32]:
    """Decode a sound to mono at `rate`, in [-1, 1] where the file is; exactly `sound_length` samples, float32 (n,).

    Raises:
        EncodeError: as `sound_length`, or damaged, or with samples that are no numbers.
    """
    length = sound_length(reference, folder, rate)
    if _is_array(reference):
        sound, its_rate = _array(reference, rate)
    else:
        sound, its_rate = _decoded(reference, folder)
    mono = sound.mean(axis=1) if sound.ndim == 2 else sound
    if not np.abs(mono).max(initial=0) <= LOUDEST:  # also where that is no number
        raise EncodeError(f"{name_of(reference)} holds samples that are no numbers", reason="sound not readable")
    if its_rate != rate:
        mono = need("soxr", why="sounds of another rate").resample(mono, its_rate, rate)
    out = np.zeros(length, np.float32)
    out[: min(length, len(mono))] = mono[:length]
    return out


def _header(reference: Any, folder: Folder) -> tuple[int, int]:
    """Give the number of samples and the rate."""
    soundfile = need("soundfile", why="sounds")
    with decoding(reference, "sound"):
        try:
            info = soundfile.info(folder.open(reference))
        except soundfile.LibsndfileError:
            with need("av", why="sounds in containers").open(folder.open(reference)) as container:
                stream = container.streams.audio[0]
                spans = [
                    (p.pts, p.pts + (p.duration or 0)) for p in container.demux(stream) if p.size and p.pts is not None
                ]
                ticks = max(end for _, end in spans) - min(at for at, _ in spans)
                rate = int(stream.codec_context.sample_rate)
                return round(ticks * stream.time_base * rate), rate
        return int(info.frames), int(info.samplerate)


def _decoded(reference: Any, folder: Folder) -> tuple[NDArray[np.float32], int]:
    """Give float32 (n, channels) and the rate."""
    soundfile = need("soundfile", why="sounds")
    with decoding(reference, "sound"):
        try:
            sound, rate = soundfile.read(folder.open(reference), dtype="float32", always_2d=True)
        except soundfile.LibsndfileError:
            av = need("av", why="sounds in containers")
            with av.open(folder.open(reference)) as container:
                rate = container.streams.audio[0].codec_context.sample_rate
                floats = av.AudioResampler(format="fltp")
                parts = [f.to_ndarray() for frame in container.decode(audio=0) for f in floats.resample(frame)]
                sound = np.concatenate(parts, axis=1).T
        return sound, int(rate)


def _is_array(reference: Any) -> bool:
    return isinstance(unwrapped(reference), (np.ndarray, list, tuple))


def _array(reference: Any, rate: int) -> tuple[NDArray[np.float32], int]:
    """Give float32 (n,) or (n, channels), whole numbers scaled as their width says, and the rate."""
    with decoding(reference, "sound"):
        array = np.asarray(unwrapped(reference))
        told = reference.get("sampling_rate") if isinstance(reference, dict) else None
        its_rate = rate if told is None else int(told)
        if not isinstance(unwrapped(reference), np.ndarray):
            array = array.astype(np.float32)
    if array.ndim not in {1, 2} or (array.dtype.kind != "f" and array.dtype.name not in _WIDTHS):
        raise EncodeError(
            f"an array {array.shape} of {array.dtype} is no sound (n,) or (n, channels)",
            reason="unknown kind of medium",
        )
    if array.ndim == 2 and array.shape[0] < array.shape[1]:
        array = array.T  # (channels, n)
    if array.dtype.name in _WIDTHS:
        middle, scale = _WIDTHS[array.dtype.name]
        array = (array.astype(np.float32) - middle) / scale
    return array.astype(np.float32), its_rate
