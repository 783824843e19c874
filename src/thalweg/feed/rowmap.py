"""Functions on packed rows, behind `pack`: they see a row as it is laid out and may change its values, not its length.

Decides what such a function is given and may give back. Knows no plan and no padding.
"""

from collections.abc import Sequence

import numpy as np

from thalweg.core.errors import SampleError
from thalweg.core.sample import IGNORE_INDEX, INPUT_IDS, LABELS
from thalweg.feed import stages as st
from thalweg.feed.merge import call
from thalweg.plan.rows import RowArrays

POSITIONS = "position_ids"


def map_rows(stages: Sequence[st.Map], rows: RowArrays) -> None:
    """Apply functions to each row, in place: {input_ids, labels, position_ids} of its tokens, padding left out.

    Raises:
        SampleError: a function dropped a row, gave another length, or a column that a batch has no place for.
        Exception: the function's own, with the row named, unless the stage lets rows fail: then its loss is gone.
    """
    flat = rows.pad == "none"
    ends = np.cumsum(rows.row_tokens).tolist()
    for i, n in enumerate(rows.row_tokens.tolist() if flat else rows.lengths.tolist()):
        if not n:
            continue
        places = (0, slice(ends[i] - n, ends[i])) if flat else (i, slice(0, n))
        try:
            _map_row(stages, rows, places)
        except Exception as error:
            error.add_note(f"while mapping row {i} of a batch")
            if stages[0].on_error == "raise":
                raise
            rows.labels[places] = IGNORE_INDEX
            rows.weight[i] = 0.0
    rows.num_label_tokens = int(np.count_nonzero(rows.labels != IGNORE_INDEX))


def _map_row(stages: Sequence[st.Map], rows: RowArrays, places: tuple[int, slice]) -> None:
    arrays = {INPUT_IDS: rows.input_ids, LABELS: rows.labels, POSITIONS: rows.position_ids}
    row = {name: values[..., places[0], places[1]].copy() for name, values in arrays.items()}
    given = row
    for stage in stages:
        made = call(stage, given)
        if len(made) != 1:
            raise SampleError(f"the function made {len(made)} rows of one", where=str(stage), fix="give one dict back")
        given = made[0]
    for name, values in given.items():
        if name not in arrays:
            raise SampleError(f"column {name!r} has no place in a batch of packed rows", where=str(stages[-1]))
        if np.shape(values) != row[name].shape:
            raise SampleError(
                f"{name} came back with shape {np.shape(values)}, the row has {row[name].shape}",
                where=str(stages[-1]),
                fix="a map behind pack keeps lengths; put one that changes them before pack, with .cache() behind it",
            )
        arrays[name][..., places[0], places[1]] = values
