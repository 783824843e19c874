"""The loader's place in a Trainer's checkpoint folder.

Decides the names of its files: one for a planned feed (the place is the same on all ranks), one for each
data-parallel rank of a stream, so that any number of ranks can put them together.
"""

import json
import os
from pathlib import Path

from thalweg.core.errors import StateError
from thalweg.feed.streamstate import merge_states

_ONE, _RANK = "thalweg.json", "thalweg-{rank:05d}.json"


def save(folder: str, state: dict[str, str], *, planned: bool, rank: int) -> None:
    """Write the place of a rank; whole, or not at all.

    Args:
        folder: the checkpoint's.
        state: of the loader.
        planned: one file serves all ranks; rank 0 writes it.
        rank: data-parallel rank.
    """
    if planned and rank:
        return
    path = Path(folder) / (_ONE if planned else _RANK.format(rank=rank))
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(json.dumps(state, indent=1), encoding="utf-8")
    partial.replace(path)


def load(folder: str) -> dict[str, str]:
    """Read the place that a checkpoint holds, of whatever number of ranks saved it.

    Raises:
        StateError: the folder holds none.
    """
    one = Path(folder) / _ONE
    if one.exists():
        found: dict[str, str] = json.loads(one.read_text(encoding="utf-8"))
        return found
    parts = sorted(Path(folder).glob("thalweg-[0-9]*.json"))
    if not parts:
        raise StateError(
            "this checkpoint holds no place of a feed", where=folder,
            fix="resume from one that a Trainer with a feed saved (and not with save_only_model=True)",
        )  # fmt: skip
    return merge_states(json.loads(part.read_text(encoding="utf-8")) for part in parts)
