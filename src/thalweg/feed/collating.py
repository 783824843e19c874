"""Which collate function a feed's batches really get: an encoder that leaves media for later brings its own.

Decides that `collate="hf"`, the default, stands for the collator of the encoder where one has media; anything else that
is said stays. Knows no model.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from thalweg.core.errors import ConfigError
from thalweg.feed import stages as st
from thalweg.feed.feed import Feed


def batching_of(feed: Feed) -> Any:
    """Find the batching stage of a feed, with the collate function that it really gets; None where there is none."""
    stage = next((s for s in feed.stages if isinstance(s, st.BATCHING)), None)
    if not isinstance(stage, st.Batch) or stage.collate != "hf" or stage.pad != "right":
        return stage
    make = _maker(feed)
    if make is None:
        return stage
    pack = next((s for s in feed.stages if isinstance(s, st.Pack)), None)
    width = stage.pad_to if stage.pad_to is not None or pack is None else pack.capacity
    collate = make(
        packed=pack is not None, capacity=width, pad_id=stage.pad_id, multiple_of=stage.pad_to_multiple_of
    )  # fmt: skip
    if collate is not None and stage.dtype != "int64":
        raise ConfigError("batches with media are int64", where=str(stage), fix='leave dtype="int32" out')
    return stage if collate is None else replace(stage, collate=collate)


def _maker(feed: Feed) -> Callable[..., Any] | None:
    """Find what makes collate functions: the last function of the feed or of a part that has a `collator`."""
    for stage in reversed(feed.stages):
        found = getattr(stage.fn, "collator", None) if isinstance(stage, st.Map) else None
        if isinstance(stage, st.Map) and found is not None:
            lenient = stage.on_error != "raise"  # a medium that turns out damaged is one more sample that fails
            return partial(found, on_error="skip") if lenient else found
        if isinstance(stage, st.Concat | st.Mix):
            return next((made for _, part in stage.feeds if (made := _maker(part)) is not None), None)
    return None
