"""Sounds: length from the header, and samples as mono float32 at the model's rate.

Decides that the header's length is the length: what decodes to a few samples more or fewer is cut or filled with
silence, so that counts and features agree. Knows no model.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.core.extras import need
from thalweg.encode.errors import EncodeError
from thalweg.encode.media.references import Folder, name_of, unwrapped


def sound_length(reference: Any, folder: Folder, rate: int) -> int:
    """Count the samples of a sound at `rate`, from its header.

    Args:
        reference: path, URL, bytes, {"path", "bytes"}, {"array": float (n,) or (n, channels), "sampling_rate": int}.
        folder: where paths start.
        rate: samples a second.

    Raises:
        EncodeError: not there, no sound, or an empty one.
    """
    if isinstance(unwrapped(reference), np.ndarray):
        array, its_rate = _array(reference, rate)
        frames = len(array)
    else:
        soundfile = need("soundfile", why="sounds")
        try:
            info = soundfile.info(folder.open(reference))
        except soundfile.LibsndfileError as error:
            raise EncodeError(
                f"{name_of(reference)} is no readable sound: {error}", reason="sound not readable"
            ) from error
        frames, its_rate = int(info.frames), int(info.samplerate)
    if frames <= 0 or its_rate <= 0:
        raise EncodeError(f"{name_of(reference)} holds no sound", reason="empty sound")
    return -(-frames * rate // its_rate)


def samples(reference: Any, folder: Folder, rate: int) -> NDArray[np.float32]:
    """Decode a sound to mono at `rate`, in [-1, 1] where the file is; exactly `sound_length` samples, float32 (n,)."""
    length = sound_length(reference, folder, rate)
    if isinstance(unwrapped(reference), np.ndarray):
        sound, its_rate = _array(reference, rate)
    else:
        soundfile = need("soundfile", why="sounds")
        try:
            sound, its_rate = soundfile.read(folder.open(reference), dtype="float32", always_2d=True)
        except soundfile.LibsndfileError as error:
            raise EncodeError(
                f"{name_of(reference)} cannot be decoded: {error}", reason="sound not readable"
            ) from error
    mono = sound.mean(axis=1) if sound.ndim == 2 else sound
    if its_rate != rate:
        mono = need("soxr", why="sounds of another rate").resample(mono, its_rate, rate)
    out = np.zeros(length, np.float32)
    out[: min(length, len(mono))] = mono[:length]
    return out


def _array(reference: Any, rate: int) -> tuple[NDArray[np.float32], int]:
    array = np.asarray(unwrapped(reference), np.float32)
    if array.ndim not in {1, 2}:
        raise EncodeError(f"an array {array.shape} is no sound (n,) or (n, channels)", reason="unknown kind of medium")
    given = reference.get("sampling_rate", rate) if isinstance(reference, dict) else rate
    return array, int(given)
