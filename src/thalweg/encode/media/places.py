"""Where media stand in a sample: one token of the template becomes as many as the medium has, and positions in 3-D.

Decides how ids, spans, kinds and multimodal rotary positions follow. Pure functions on arrays; knows no file.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from thalweg.encode.errors import EncodeError
from thalweg.encode.media.families import TYPES, Measured
from thalweg.encode.media.together import Stretch, pairs, together

MIX = 4  # stands for a clip with its sound while positions are worked out


def expand(
    ids: NDArray[np.int32], media: Sequence[tuple[str, Measured]], tokens: Mapping[str, int]
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
    """Repeat each medium's token as often as the medium counts.

    Args:
        ids: int32 (n,), one token a medium.
        media: kind and measure of each, in the order of the text.
        tokens: kind -> id of its token.

    Returns:
        int32 (m,) ids, int64 (m,) kinds (0 text, 1 picture, 2 clip, 3 sound), and int64 (n + 1,) new place of each
        old border.

    Raises:
        EncodeError: other numbers of media and of their tokens: the template left one out or wrote one twice.
    """
    kinds = {tokens[k]: k for k in tokens}
    at = np.flatnonzero(np.isin(ids, list(kinds)))
    written = [kinds[i] for i in ids[at].tolist()]
    if written != [k for k, _ in media]:
        raise EncodeError(
            f"the template wrote {len(written)} media where the conversation has {len(media)}",
            reason="media and placeholders differ",
            fix="use the chat template of a model that takes these media",
        )
    times = np.ones(len(ids), np.int64)
    times[at] = [m.tokens for _, m in media]
    types = np.zeros(len(ids), np.int64)
    types[at] = [TYPES[k] for k, _ in media]
    return np.repeat(ids, times), np.repeat(types, times), np.concatenate([[0], np.cumsum(times)])


def expand_mixed(
    ids: NDArray[np.int32],
    media: Sequence[tuple[str, Measured]],
    tokens: Mapping[str, int],
    mix: Callable[[Measured, Measured], Stretch],
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64], list[tuple[int, Stretch]]]:
    """Expand as `expand` does, each clip and the sound behind it as one stretch.

    Args:
        ids, media, tokens: as of `expand`.
        mix: (clip, sound) -> their stretch.

    Returns:
        ids, kinds and borders as of `expand`, and (place, stretch) of each mix.

    Raises:
        EncodeError: a clip without its sound behind it.
    """
    kinds = {tokens[k]: k for k in tokens}
    at = np.flatnonzero(np.isin(ids, list(kinds))).tolist()
    written = [kinds[i] for i in ids[at].tolist()]
    clips = pairs(at, written) if written == [k for k, _ in media] else []
    moved_ids, places, first = together(ids, at, clips)
    stretches = {i: mix(media[i][1], media[i + 1][1]) for i in clips}
    joined = [(k, m) for i, (k, m) in enumerate(media) if i - 1 not in stretches]
    sized = iter([Measured(len(stretches[i].kinds)) if i in stretches else m for i, (_, m) in enumerate(media)
                  if i - 1 not in stretches])  # fmt: skip
    out, types, second = expand(moved_ids, [(k, next(sized)) for k, _ in joined], tokens)
    mixes = [(int(second[p]), stretches[i]) for p, i in zip(places.tolist(), clips, strict=True)]
    for start, stretch in mixes:
        stop = start + len(stretch.kinds)
        types[start:stop] = stretch.kinds
        out[start:stop] = np.where(stretch.kinds == TYPES["audio"], tokens["audio"], tokens["video"])
    return out, types, second[first], mixes


def positions(
    kinds: NDArray[np.int64],
    media: Sequence[tuple[str, Measured]],
    merge: int,
    *,
    clip_step: float | None = None,
    behind: str = "side",
    mixes: Sequence[tuple[int, Stretch]] = (),
    shared: bool = False,
) -> NDArray[np.int64]:
    """Give multimodal rotary positions (time, row, column).

    Text and sound count up in all three. A picture or clip has its own rows and columns from the place where it
    begins; what follows goes on behind it.

    Args:
        kinds: int64 (n,), as `expand` gives them.
        media: kind and measure of each medium, in order.
        merge: patches joined to one token, a side.
        clip_step: None: a step of a clip's time counts 1 (Qwen2-VL); a number: `seconds * clip_step` (Qwen2.5).
        behind: what follows a medium goes on behind its larger "side" (Qwen-VL) or its "largest" position (Omni).
        mixes: place and stretch of clips with their sound.
        shared: the two tokens that open a mix share a position, and the two that close it.

    Returns:
        int64 (3, n).
    """
    out = np.empty((3, len(kinds)), np.int64)
    marked = kinds.copy()
    for place, stretch in mixes:
        marked[place : place + len(stretch.kinds)] = MIX
    at = here = 0
    seen, mixed = iter([m for m in media if m[0] != "audio"]), iter(mixes)
    edges = np.flatnonzero(np.diff(marked, prepend=-1)).tolist()
    for start, stop in zip(edges, [*edges[1:], len(kinds)], strict=True):
        kind = int(marked[start])
        if kind in {0, TYPES["audio"]}:
            counted = np.arange(stop - start)
            if shared and stop < len(kinds) and marked[stop] == MIX:
                counted[-1] -= 1
            if shared and start and marked[start - 1] == MIX:
                counted[1:] -= 1
            out[:, start:stop] = here + counted
            here += int(counted[-1]) + 1
            continue
        if kind == MIX:
            next(seen)
            _, stretch = next(mixed)
            out[:, start:stop] = here + stretch.positions
            here += stretch.after
            continue
        at = start
        while at < stop:  # media side by side without a token between them
            _, measured = next(seen)
            at, here = _block(out, measured, at, here, merge=merge, clip_step=clip_step, behind=behind)
    return out


def _block(
    out: NDArray[np.int64],
    measured: Measured,
    at: int,
    here: int,
    *,
    merge: int,
    clip_step: float | None,
    behind: str,
) -> tuple[int, int]:
    """Write the positions of a picture or clip at `at`; give (place, position) behind it."""
    assert measured.grid is not None
    t, h, w = measured.grid[0], measured.grid[1] // merge, measured.grid[2] // merge
    step = 1.0 if clip_step is None else measured.seconds * clip_step
    time = (np.arange(t) * step).astype(np.int64)
    block = np.stack(np.broadcast_arrays(time[:, None, None], np.arange(h)[:, None], np.arange(w)))
    out[:, at : at + t * h * w] = block.reshape(3, -1) + here
    return at + t * h * w, here + (max(h, w) if behind == "side" else int(max(time[-1] + 1, h, w)))


def moved(spans: NDArray[np.int32], borders: NDArray[np.int64]) -> NDArray[np.int32]:
    """Move token spans to where their borders are after `expand`. int32 (k, 2)."""
    return borders[spans].astype(np.int32).reshape(-1, 2)
