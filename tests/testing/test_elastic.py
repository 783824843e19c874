"""The oracle of elastic order passes a right loader and finds each way to be wrong."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thalweg.core.batch import Batch, BatchInfo
from thalweg.testing.elastic import Leg, assert_continues_anywhere


class Loader:
    """A right loader over an endless order of rows, two rows a micro-batch; faults are switched on by name."""

    def __init__(self, topology, accumulation, fault=""):
        self.t, self.accumulation, self.fault, self.row, self.taken = topology, accumulation, fault, 0, 0

    def __iter__(self):
        size = 2 * self.t.dp_size
        for step in itertools.count(self.taken):
            micros = []
            for micro in range(self.accumulation):
                begin = self.row + micro * size + 2 * self.t.dp_rank
                if self.fault == "by rank":
                    begin = self.row + micro * size + self.t.dp_rank
                micros.append(list(range(begin, begin + 2)))
            all_rows = range(self.row, self.row + size * self.accumulation)
            self.row, self.taken = self.row + size * self.accumulation, self.taken + 1
            for micro, rows in enumerate(micros):
                if self.fault == "short" and self.t.dp_rank == 1:
                    return
                yield self.batch(step, micro, rows, all_rows)

    def batch(self, step, micro, rows, all_rows):
        total = sum(all_rows)
        if self.fault == "own total":
            total = sum(rows)
        last = micro == self.accumulation - 1
        return Batch(
            {},
            info=BatchInfo(
                ids=[[str(row)] for row in rows],
                step=step + (self.fault == "step" and self.t.dp_rank),
                last=True if self.fault == "last" else last,
                num_label_tokens=sum(rows),
                step_label_tokens=total,
                weight=np.ones(2, np.float32),
            ),
        )

    def state_dict(self):
        row = self.row + (self.fault == "state" and self.t.dp_rank)
        return {"row": str(row - (self.fault == "again" and 1)), "step": str(self.taken)}

    def load_state_dict(self, state):
        self.row, self.taken = int(state["row"]), int(state["step"])

    def close(self):
        pass


legs = st.lists(st.builds(Leg, st.integers(0, 4), st.sampled_from([1, 2, 3, 8]), st.integers(1, 3)), max_size=4)


# C29
@given(legs)
def test_a_right_loader_passes_and_every_row_comes_once_in_order(chain):
    rows = assert_continues_anywhere(Loader, chain)
    assert sorted(rows, key=lambda r: int(r[0])) == [(str(i),) for i in range(len(rows))]
    assert len(rows) == sum(2 * leg.steps * leg.world * leg.accumulation for leg in chain)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("by rank", "missing"),
        ("short", "micro-batches of each rank"),
        ("own total", "step_label_tokens"),
        ("step", "differ in epoch and step"),
        ("last", "info.last"),
        ("state", "states differ"),
        ("again", "leg 1"),
    ],
)
def test_a_wrong_loader_is_found(fault, words):
    def make(topology, accumulation):
        return Loader(topology, accumulation, fault if topology.dp_size > 1 else "")

    with pytest.raises(AssertionError, match=words):
        assert_continues_anywhere(make, [Leg(2, 2, 2), Leg(1, 3)])
