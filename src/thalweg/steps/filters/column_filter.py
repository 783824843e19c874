"""A filter over columns: one call for a batch of rows instead of one for each document.

Decides how a mask is read. Knows no format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from thalweg.core.errors import SampleError
from thalweg.steps.batches import LENGTH, dropped
from thalweg.steps.step import PipelineStep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from thalweg.steps.step import Documents


class ColumnFilter(PipelineStep):
    """Keeps the rows for which a function of columns says so.

    Args:
        function: record batch -> mask of its rows (Arrow boolean array, numpy bool (n,), or a list); null drops.
        columns: what it looks at: "text", "id", "metadata.score"; only these are decoded. "text.length" counts the
            characters without making a column of the text: a filter by length costs a third with it.
        reason: under which the others are counted.

    In a chain that begins with such filters rows travel as columns; after the first step that takes documents they
    are documents, made of the rows that are left.
    """

    type = "filter"
    name = "Columns"
    prefers_batches = takes_batches = True
    spent: tuple[str, ...] = ()  # columns that no later step looks at: they go before rows are copied

    def __init__(
        self, function: Callable[[Any], Any], columns: Sequence[str] = ("text",), reason: str = "filtered"
    ) -> None:
        super().__init__()
        self.function, self.columns, self.reason = function, tuple(columns), reason

    def run_batches(self, data: Iterator[Any], rank: int, world_size: int) -> Iterator[Any]:
        """Yield the rows that are kept."""
        del rank, world_size
        for batch in data:
            mask = self._mask(batch)
            kept = dropped(batch, self.spent).filter(mask)
            if kept.num_rows < batch.num_rows:
                self.drop(self.reason, batch.num_rows - kept.num_rows)
            if kept.num_rows:
                yield kept

    def _mask(self, batch: Any) -> Any:
        found = self.function(batch)
        mask = found if isinstance(found, pa.Array) else pa.array(np.asarray(found, bool))
        if len(mask) != batch.num_rows:
            raise SampleError(
                f"the mask has {len(mask)} values for {batch.num_rows} rows",
                where=self.name,
                fix="return one boolean for each row",
            )
        return pc.fill_null(mask, False) if mask.null_count else mask

    def run(self, data: Documents, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        """Filter documents, where the chain before this step gives documents."""
        del rank, world_size
        for doc in data or ():
            row = {name: [_of(doc, name)] for name in self.columns}
            if self._mask(pa.RecordBatch.from_pydict(row))[0].as_py():
                yield doc
            else:
                self.drop(self.reason)


def _of(document: Any, name: str) -> Any:
    if name == LENGTH:
        return len(document.text)
    head, _, tail = name.partition(".")
    value = getattr(document, head, document.metadata.get(head))
    for key in tail.split(".") if tail else ():
        value = value.get(key) if isinstance(value, dict) else None
    return value
