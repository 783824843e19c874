"""Where media stand in a sample: one token of the template becomes as many as the medium has, and positions in 3-D.

Decides how ids, spans, kinds and multimodal rotary positions follow. Pure functions on arrays; knows no file.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from thalweg.encode.errors import EncodeError
from thalweg.encode.media.families import TYPES, Measured


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


def positions(
    kinds: NDArray[np.int64],
    media: Sequence[tuple[str, Measured]],
    merge: int,
    *,
    clip_step: float | None = None,
    behind: str = "side",
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

    Returns:
        int64 (3, n).
    """
    out = np.empty((3, len(kinds)), np.int64)
    at = here = 0
    seen = iter([m for m in media if m[0] != "audio"])
    edges = np.flatnonzero(np.diff(kinds, prepend=-1)).tolist()
    for start, stop in zip(edges, [*edges[1:], len(kinds)], strict=True):
        kind = int(kinds[start])
        if kind in {0, TYPES["audio"]}:
            out[:, start:stop] = here + np.arange(stop - start)
            here += stop - start
            continue
        at = start
        while at < stop:  # media side by side without a token between them
            _, measured = next(seen)
            assert measured.grid is not None
            t, h, w = measured.grid[0], measured.grid[1] // merge, measured.grid[2] // merge
            step = 1.0 if clip_step is None else measured.seconds * clip_step
            time = (np.arange(t) * step).astype(np.int64)
            block = np.stack(np.broadcast_arrays(time[:, None, None], np.arange(h)[:, None], np.arange(w)))
            out[:, at : at + t * h * w] = block.reshape(3, -1) + here
            here += max(h, w) if behind == "side" else int(max(time[-1] + 1, h, w))
            at += t * h * w
    return out


def moved(spans: NDArray[np.int32], borders: NDArray[np.int64]) -> NDArray[np.int32]:
    """Move token spans to where their borders are after `expand`. int32 (k, 2)."""
    return borders[spans].astype(np.int32).reshape(-1, 2)
