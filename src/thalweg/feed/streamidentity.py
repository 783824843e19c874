"""What a stream's order depends on, as digests that a state carries; and the side of a split that a sample is on.

Decides which words of a feed are part of its identity: those that change which samples come in which order. Workers,
batching and `on_error` are not. Opens nothing.
"""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from thalweg.core.sample import Sample
from thalweg.core.state import digest
from thalweg.feed import stages as st
from thalweg.feed.code import code_of
from thalweg.feed.compile import placed
from thalweg.feed.feed import Feed
from thalweg.feed.source import hash_ids


def identity_of(feed: Feed, seed: int, shards: int) -> dict[str, str]:
    """Digest what the order depends on, by part; "map" is the code of functions."""
    data, order, code = _parts(feed)
    return {
        "data": digest([data, shards], size=4),
        "seed": digest(seed, size=4),
        "stages": digest(order, size=4),
        "map": digest(code, size=4),
    }


def _parts(feed: Feed) -> tuple[Any, list[Any], list[Any]]:
    """Give data, order and code of a feed; those of its parts inside."""
    head = feed.stages[0]
    order: list[Any] = []
    code: list[Any] = []
    data: Any = head.source.fingerprint if isinstance(head, st.From) else "stream"
    if isinstance(head, st.Concat | st.Mix):
        inner = [(name, *_parts(part)) for name, part in head.feeds]
        data = [[name, d] for name, d, _, _ in inner]
        order.append([_rule(head), [o for _, _, o, _ in inner]])
        code.append([c for _, _, _, c in inner])
    order += [_word(stage) for stage in _ordering(feed.stages[1:])]
    code += [code_of(stage.fn) for stage in feed.stages[1:] if isinstance(stage, st.Map | st.Filter)]
    return data, order, code


def _rule(head: st.Concat | st.Mix) -> list[str]:
    return [str(head), str(getattr(head, "seed", None))]


def _ordering(stages: Sequence[st.Stage]) -> list[st.Stage]:
    return [stage for stage in stages if not isinstance(stage, st.Batch)]


def _word(stage: st.Stage) -> str:
    if isinstance(stage, st.Map | st.Filter):
        return f"{stage.verb} batched={getattr(stage, 'batched', False)}"
    return f"{stage.verb} {[(f.name, getattr(stage, f.name)) for f in fields(stage)]}"


class Side:
    """Keeps the samples whose id hashes into one part of a split."""

    def __init__(self, stage: st.Split) -> None:
        before = 0.0
        for name, share in stage.shares:
            if name == stage.part:
                self._low, self._high = before, before + share
            before += share
        self._stage = stage

    def __call__(self, sample: Sample, info: Any) -> bool:
        """Say whether a sample belongs to the part."""
        del sample
        at = float(placed(hash_ids([info.id]), self._stage)[0])
        return self._low <= at < (self._high if self._high < 1 - 1e-9 else 2.0)
