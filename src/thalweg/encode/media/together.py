"""A clip and its own sound as one stretch of tokens, in the order of time: what `use_audio_in_video` asks for.

Decides how the tokens of the two alternate and which positions they get, for the two families that do so. Pure
functions on arrays; the template writes a clip and, right behind it, its sound.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from thalweg.encode.errors import EncodeError
from thalweg.encode.media.families import TYPES, Measured, Time

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Stretch:
    """A clip with its sound.

    Args:
        kinds: int64 (n,), 2 for a token of the clip, 3 for one of the sound.
        positions: int64 (3, n), from 0.
        after: position at which what follows begins.
    """

    kinds: Ints
    positions: Ints
    after: int


def interleave(clip: Measured, sound: Measured, merge: int, time: Time) -> Stretch:
    """Put the tokens of a clip and of its sound in the order of time.

    Args:
        clip, sound: as measured.
        merge: patches joined to one token, a side.
        time: of the family.
    """
    assert clip.grid is not None
    t, h, w = clip.grid[0], clip.grid[1] // merge, clip.grid[2] // merge
    at = np.repeat((np.arange(t) * clip.seconds * time.step).astype(np.float64), h * w)
    block = np.stack(np.broadcast_arrays(np.arange(t)[:, None, None], np.arange(h)[:, None], np.arange(w)))
    seen = block.reshape(3, -1)
    seen[0] = at.astype(np.int64)
    heard = np.tile(np.arange(sound.tokens), (3, 1))
    runs = _by_chunks(at, heard[0], time.chunk) if time.chunk is not None else _by_time(at, sound.tokens)
    kinds: list[Ints] = []
    places: list[Ints] = []
    for kind, start, stop in runs:
        kinds.append(np.full(stop - start, kind))
        places.append((seen if kind == TYPES["video"] else heard)[:, start:stop])
    return Stretch(np.concatenate(kinds), np.concatenate(places, axis=1), int(places[-1].max()) + 1)


def _chunks(values: NDArray[np.float64] | Ints, size: float) -> list[tuple[int, int]]:
    """Cut rising values where they pass a further multiple of `size`; one multiple a cut."""
    out: list[tuple[int, int]] = []
    start, number = 0, 1
    for i, value in enumerate(values.tolist()):
        if value >= number * size:
            out.append((start, i))
            start, number = i, number + 1
    return [*out, (start, len(values))]


def _by_chunks(at: NDArray[np.float64], heard: Ints, size: float) -> list[tuple[int, int, int]]:
    clip, sound = _chunks(at, size), _chunks(heard, size)
    runs: list[tuple[int, int, int]] = []
    for i in range(max(len(clip), len(sound))):
        runs += [(TYPES["video"], *clip[i])] if i < len(clip) else []
        runs += [(TYPES["audio"], *sound[i])] if i < len(sound) else []
    return [run for run in runs if run[2] > run[1]]


def _by_time(at: NDArray[np.float64], heard: int) -> list[tuple[int, int, int]]:
    """Let a token of the clip go before the first token of sound that is not earlier."""
    before = np.minimum(np.ceil(at).astype(np.int64), heard)  # tokens of sound before each token of the clip
    runs: list[tuple[int, int, int]] = []
    said = 0
    edges = [0, *(np.flatnonzero(np.diff(before)) + 1).tolist(), len(at)]
    for a, b in pairwise(edges):
        if before[a] > said:
            runs.append((TYPES["audio"], said, int(before[a])))
            said = int(before[a])
        runs.append((TYPES["video"], a, b))
    return [*runs, (TYPES["audio"], said, heard)] if said < heard else runs


def pairs(at: Sequence[int], kinds: Sequence[str]) -> list[int]:
    """Find the clips of a rendering that have their sound right behind them.

    Args:
        at: place of each medium's token.
        kinds: kind of each medium, in order.

    Returns:
        The number of each clip among the media.

    Raises:
        EncodeError: other numbers of clips and sounds, or a clip without its sound behind it.
    """
    clips, sounds = kinds.count("video"), kinds.count("audio")
    if clips != sounds:
        raise EncodeError(
            f"{clips} videos and {sounds} audios, and use_audio_in_video wants a sound for each clip",
            reason="clips and sounds differ",
        )
    found = [i for i, kind in enumerate(kinds) if kind == "video"]
    for i in found:
        if i + 1 == len(kinds) or kinds[i + 1] != "audio" or at[i + 1] != at[i] + 3:
            raise EncodeError(
                "a <video> without its <audio> right behind it", reason="clips and sounds differ",
                fix="write <video><audio>, or use_audio_in_video: false",
            )  # fmt: skip
    return found


def together(ids: NDArray[np.int32], at: Sequence[int], clips: Sequence[int]) -> tuple[NDArray[np.int32], Ints, Ints]:
    """Turn "open clip, CLIP, close clip, open sound, SOUND, close sound" into "open both, CLIP, close both".

    Args:
        ids: int32 (n,), one token a medium.
        at: place of each medium's token.
        clips: numbers of the clips among the media.

    Returns:
        int32 (m,) ids with the clip's token in the place of both, its places among them int64 (k,), and int64 (n + 1,)
        new place of each old border.
    """
    order: list[int] = []
    mixes: list[int] = []
    borders = np.empty(len(ids) + 1, np.int64)
    done = 0
    for clip in clips:
        p = at[clip]
        borders[done : p + 1] = len(order) + np.arange(p + 1 - done)
        order += [*range(done, p), p + 2]
        mixes.append(len(order))
        order += [p, p + 4, p + 1]
        borders[p + 1 : p + 6] = len(order)
        done = p + 5
    borders[done:] = len(order) + np.arange(len(ids) + 1 - done)
    order += range(done, len(ids))
    return ids[order], np.array(mixes, np.int64), borders
