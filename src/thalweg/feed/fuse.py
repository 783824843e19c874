"""Adjacent functions of a stream as one call: no queue, no thread change and no event between them.

Decides which functions may run as one: those with the same words for how they run, that ask for no info and no batch,
and give their outputs at once. What the whole gives is what they give one after the other.
"""

import inspect
from collections.abc import Sequence
from dataclasses import replace

from thalweg.core.sample import Sample
from thalweg.feed import stages as st
from thalweg.feed.merge import call
from thalweg.work.percopy import for_worker


class Fused:
    """Functions in a row on one sample, merged as each of them asks."""

    def __init__(self, stages: Sequence[st.Map]) -> None:
        self.stages = tuple(stages)
        self.__qualname__ = " + ".join(st.describe(s.fn) for s in self.stages)

    def __call__(self, sample: Sample) -> list[Sample]:
        """Give the outputs of the last function."""
        samples = [sample]
        for stage in self.stages:
            samples = [made for one in samples for made in call(stage, one)]
        return samples

    def for_worker(self) -> "Fused":
        """Give one for a worker thread: tokenizers are its own."""
        return Fused([replace(s, fn=for_worker(s.fn)) for s in self.stages])


def fused(stages: Sequence[tuple[int, st.Stage]]) -> list[tuple[int, st.Stage]]:
    """Put adjacent functions together.

    Args:
        stages: (number in the feed, stage).

    Returns:
        The same, each run of functions under the number of its first as one map.
    """
    out: list[tuple[int, st.Stage]] = []
    for number, stage in stages:
        before = out[-1][1] if out else None
        if isinstance(stage, st.Map) and isinstance(before, st.Map) and _alike(before, stage):
            inner = before.fn.stages if isinstance(before.fn, Fused) else (before,)
            whole = Fused((*inner, stage))
            out[-1] = (
                out[-1][0],
                replace(before, fn=whole, remove_columns="all", input_columns=None, output_columns=None),
            )
        else:
            out.append((number, stage))
    return out


def _alike(a: st.Map, b: st.Map) -> bool:
    words = ("workers", "mode", "on_error", "max_bad", "quarantine", "timeout", "ahead")
    same = all(getattr(a, w) == getattr(b, w) for w in words)
    return same and all(_simple(s) for s in (a, b))


def _simple(stage: st.Map) -> bool:
    fn = stage.fn.stages[-1].fn if isinstance(stage.fn, Fused) else stage.fn
    calls = getattr(type(fn), "__call__", None)  # noqa: B004  (its code is wanted)
    one_by_one = inspect.isgeneratorfunction(fn) or inspect.isgeneratorfunction(calls)
    return not (stage.batched or stage.with_info or one_by_one or stage.length)
