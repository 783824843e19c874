"""Whether the tokens in the loss of a step are known before it is read, and if not, why and what helps.

Decides which sources and functions leave that known: the table counts them, and no function behind it may change
them. Reads no token and runs nothing; the counting is `feed.weights`.
"""

from collections.abc import Sequence
from typing import Any

from thalweg.core.sample import INPUT_IDS, LABELS, LOSS_SPANS
from thalweg.feed import stages as st
from thalweg.feed.columns import names

TOKENS = frozenset({INPUT_IDS, LABELS, LOSS_SPANS, "attention_mask"})
CACHE = ".cache() behind it"
DECLARED = f"{CACHE}, or name in output_columns= what it sets, no column of tokens"


def marks_loss(source: Any) -> bool:
    """Say whether samples of a source may say which tokens are in the loss; else all but the first are."""
    columns = source.columns
    return columns is None or LABELS in columns or LOSS_SPANS in columns


def keeps_loss(stage: st.Map) -> bool:
    """Say whether a function leaves tokens and labels as they were, so far as its declarations say it."""
    outputs = names(stage.output_columns)
    if not outputs or stage.on_error != "raise" or stage.batched:
        return False
    gone = TOKENS if stage.remove_columns == "all" else set(names(stage.remove_columns))
    return not TOKENS & {*outputs, *gone}


def unknown(stages: Sequence[st.Stage]) -> str | None:
    """Say why the tokens in the loss of a step are not known from the table, and what helps; None where they are."""
    why: str | None = None
    for at, stage in enumerate(stages):
        if isinstance(stage, st.From):
            why = _of_source(stage)
        elif isinstance(stage, st.Mix | st.Concat):
            why = next((w for _, inner in stage.feeds if (w := unknown(inner.stages)) is not None), None)
        elif isinstance(stage, st.Cache):
            why = f"{stage}: each rank knows its own share alone; scope='node'" if stage.scope == "rank" else None
        elif isinstance(stage, st.Map) and not keeps_loss(stage):
            why = why or f"{stage} may change them; {DECLARED}"
        elif isinstance(stage, st.Pack) and _cuts(stage) and _counts_alone(stages[:at]):
            why = why or f"{stage} cuts samples of which counts alone are kept; .cache() keeps samples"
    return why


def _cuts(stage: st.Pack) -> bool:
    """Say whether samples that mark their loss may be cut: `overlong="split"` refuses those."""
    return stage.policy == "concat_split" or stage.overlong == "truncate"


def _counts_alone(stages: Sequence[st.Stage]) -> bool:
    """Say whether functions run again behind what was counted once."""
    inner = any(_counts_alone(f.stages) for s in stages[:1] for _, f in getattr(s, "feeds", ()))
    return inner or any(isinstance(s, st.Cache) and s.what == "lengths" for s in stages)


def _of_source(stage: st.From) -> str | None:
    source = stage.source
    if source.lengths is None:
        return f"{stage} does not know the lengths of its samples; {CACHE}"
    if marks_loss(source) and "label_tokens" not in source.facts:
        return f"{stage} has not counted them; {CACHE}"
    return None
