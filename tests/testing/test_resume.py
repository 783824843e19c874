"""The oracle of resuming passes a right node and finds every kind of wrong one."""

import json
import random

import pytest

from thalweg.core.errors import StateError
from thalweg.testing import assert_resumes_everywhere

LENGTHS = [6, 3, 4, 5, 1, 10, 2, 9]


class Packer:
    """A right node with something in its hand: packs numbers into rows of 10, the last row at the end."""

    def __init__(self, lengths=LENGTHS):
        self.lengths, self.next, self.hand, self.closed = lengths, 0, [], 0

    def __iter__(self):
        return self

    def __next__(self):
        while self.next < len(self.lengths):
            i = self.next
            if self.hand and sum(self.lengths[j] for j in self.hand) + self.lengths[i] > 10:
                row, self.hand = self.hand, [i]
                self.next += 1
                return row
            self.hand.append(i)
            self.next += 1
        if self.hand:
            row, self.hand = self.hand, []
            return row
        raise StopIteration

    def state(self):
        return {"kind": "packer", "version": 1, "next": self.next, "hand": list(self.hand)}

    def restore(self, state):
        if state["kind"] != "packer" or state["version"] > 1:
            raise StateError("not mine")
        self.next, self.hand = state["next"], list(state["hand"])

    def close(self):
        self.closed += 1


# K30 K26
def test_a_right_node_passes_and_its_items_come_back():
    made = []

    def make():
        made.append(Packer())
        return made[-1]

    assert assert_resumes_everywhere(make) == [[0, 1], [2, 3, 4], [5], [6], [7]]
    assert all(node.closed == 2 for node in made)


def test_an_empty_node_passes():
    assert assert_resumes_everywhere(lambda: Packer([])) == []


class LosesTheHand(Packer):
    def state(self):
        return super().state() | {"hand": []}


class ReadsAhead(Packer):
    """Its state is the reader's place, not the place of what was handed over."""

    def __init__(self):
        super().__init__()
        self.queue = []

    def __next__(self):
        while len(self.queue) < 2:
            try:
                self.queue.append(super().__next__())
            except StopIteration:
                break
        if not self.queue:
            raise StopIteration
        return self.queue.pop(0)

    def restore(self, state):
        super().restore(state)
        self.queue = []


class SharesItsState(Packer):
    def state(self):
        return super().state() | {"hand": self.hand}


class KeepsOldHandOnRestore(Packer):
    def restore(self, state):
        super().restore(state)
        self.old = getattr(self, "old", 0)

    def __next__(self):
        row = super().__next__()
        self.seen = getattr(self, "seen", 0) + 1
        return [self.seen, *row] if hasattr(self, "old") and self.seen > 2 else row


class StateMoves(Packer):
    def state(self):
        before = super().state()
        self.next = min(len(self.lengths), self.next + (self.next == 3))
        return before


class NotJson(Packer):
    def state(self):
        return super().state() | {"hand": tuple(self.hand)}


class ChangesWhatItIsGiven(Packer):
    def restore(self, state):
        super().restore(state)
        state["hand"].append(0)


class BeginsAnewAtItsEnd(Packer):
    def restore(self, state):
        super().restore(state)
        if self.next == len(self.lengths) and not self.hand:
            self.next = 0


class TakesAnything(Packer):
    def restore(self, state):
        self.next, self.hand = state["next"], list(state["hand"])


class TakesNewer(Packer):
    def restore(self, state):
        super().restore(state | {"version": 1})


class Random(Packer):
    def __next__(self):
        return [*super().__next__(), random.random()]


class GivesOneMore(Packer):
    """After its end it goes on."""

    def __next__(self):
        try:
            return super().__next__()
        except StopIteration:
            self.next = 7
            raise


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (LosesTheHand, "restored after"),
        (ReadsAhead, "restored after"),
        (SharesItsState, "was changed by going on|another one"),
        (KeepsOldHandOnRestore, "restored after"),
        (StateMoves, "in which states are taken"),
        (NotJson, "does not survive JSON"),
        (ChangesWhatItIsGiven, "was changed"),
        (BeginsAnewAtItsEnd, "another one|more items"),
        (TakesAnything, "another kind"),
        (TakesNewer, "a newer version"),
        (Random, "second pass"),
        (GivesOneMore, "another item"),
    ],
)
def test_a_wrong_node_is_found(wrong, words):
    with pytest.raises(AssertionError, match=words):
        assert_resumes_everywhere(wrong)


class Loader:
    """A loader's ways: a state after each batch, each `for` an epoch, a new iter restarts."""

    def __init__(self, skip=0):
        self.epoch, self.row, self.resumed, self.skip = 0, 0, False, skip

    def __iter__(self):
        if not self.resumed:
            self.row = 0
        self.resumed = False
        while self.row < 4:
            self.row += 1
            yield (self.epoch, self.row - 1)
        self.epoch, self.row = self.epoch + 1, 0

    def state_dict(self):
        done = self.row == 4
        return {"epoch": str(self.epoch + done), "row": str(0 if done else self.row)}

    def load_state_dict(self, state):
        self.epoch, self.row, self.resumed = int(state["epoch"]), int(state["row"]) + self.skip, True


def test_a_loader_is_driven_by_its_own_names():
    assert assert_resumes_everywhere(Loader) == [(0, 0), (0, 1), (0, 2), (0, 3)]


def test_a_loader_that_skips_a_batch_is_found():
    with pytest.raises(AssertionError, match="restored after 0 of 4"):
        assert_resumes_everywhere(lambda: Loader(skip=1))


def test_an_endless_node_is_looked_at_up_to_the_limit():
    class Count(Packer):
        def __next__(self):
            self.next += 1
            return self.next - 1

    assert assert_resumes_everywhere(Count, limit=5, positions=[0, 3, 99]) == [0, 1, 2, 3, 4]


def test_positions_choose_where_to_restore():
    restored = []

    class Watched(Packer):
        def restore(self, state):
            super().restore(state)
            restored.append(json.dumps(state["next"]))

    assert_resumes_everywhere(Watched, positions=[2])
    assert len(restored) < 15
