"""Which columns samples and the table have behind some stages, as far as it is known before anything runs.

Decides what can be checked on the line that wrote a stage. Knows no order of stages: `feed.rules` does.
"""

from collections.abc import Sequence
from typing import Any

from thalweg.feed.stages import SOURCES, Cache, Concat, From, FromStream, Map, Mix, Stage


def names(columns: Any) -> tuple[str, ...]:
    """Read a column or several."""
    return () if columns is None else (columns,) if isinstance(columns, str) else tuple(columns)


def known_columns(stages: Sequence[Stage]) -> tuple[str, ...] | None:
    """Say which columns a sample has behind these stages; None where a function hides it."""
    known: tuple[str, ...] | None = None
    for stage in stages:
        if isinstance(stage, From):
            known = stage.source.columns
        elif isinstance(stage, SOURCES):
            known = None
        elif isinstance(stage, Map):
            if stage.output_columns is None or known is None or stage.batched:
                known = None
            else:
                gone = known if stage.remove_columns == "all" else names(stage.remove_columns)
                known = (*(c for c in known if c not in gone), *names(stage.output_columns))
    return known


def table_columns(stages: Sequence[Stage]) -> tuple[str, ...] | None:
    """Name the table columns behind these stages; None where they are not known before the data is opened."""
    known: tuple[str, ...] | None = None
    for stage in stages:
        if isinstance(stage, From):
            known = tuple(stage.source.facts)
        elif isinstance(stage, (FromStream, Concat, Mix, Cache)):
            known = None
    return known
