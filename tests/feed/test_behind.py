"""Groups of batches are read by a thread while the ones before are used: order, errors and ends stay where they are."""

import os
import threading
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import thalweg as tw
from thalweg.feed import planned
from thalweg.feed.behind import made_behind


def named(prefix):
    return [t for t in threading.enumerate() if t.name.startswith(prefix)]


@given(st.integers(0, 9), st.integers(0, 9), st.booleans())
def test_an_error_comes_after_all_earlier_items_whoever_raised_it(n, bad, in_make):  # A18
    def items():
        for i in range(n):
            if i == bad and not in_make:
                raise RuntimeError("given")
            yield i

    def make(i):
        if i == bad and in_make:
            raise RuntimeError("make")
        return -i

    got, run = [], made_behind(items(), make, name="behind-test")
    if bad < n:
        with pytest.raises(RuntimeError, match="make" if in_make else "given"):
            got.extend(run)
    else:
        got.extend(run)
    assert got == [(i, -i) for i in range(min(n, bad))]
    assert not named("behind-test")


def test_the_first_is_made_here_and_two_are_asked_for_ahead():
    where, asked = [], []

    def items():
        for i in range(5):
            asked.append(i)
            yield i

    run = made_behind(items(), lambda _: where.append(threading.current_thread().name), name="behind-test")
    next(run)
    assert (where, asked) == ([threading.current_thread().name], [0])  # nothing waits for a thread or a second item
    next(run)
    assert asked == [0, 1, 2, 3]
    run.close()
    assert all(name.startswith("behind-test") for name in where[1:])
    assert not named("behind-test")


def test_the_thread_goes_on_while_an_item_is_used():
    made = [threading.Event() for _ in range(9)]
    run = made_behind(iter(range(9)), lambda i: made[i].set(), name="behind-test")
    for i, _ in run:
        if 0 < i < 7:  # the one behind and the one behind that, though nobody asks for them
            assert made[i + 1].wait(30)
            assert made[i + 2].wait(30)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_goes_on_without_the_thread():
    run = made_behind(iter(range(6)), lambda i: i * i, name="behind-test")
    list(islice(run, 2))
    child = os.fork()
    if not child:
        os._exit(0 if [i for i, _ in run] == [2, 3, 4, 5] else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert [i for i, _ in run] == [2, 3, 4, 5]


def records(folder, n=400):
    with tw.create_records(str(folder)) as writer:
        for i in range(n):
            writer.write({"input_ids": np.full(1 + i % 17, i, np.int32)}, id=f"r{i}")
    return tw.from_records(str(folder))


@pytest.fixture
def four_cpus(monkeypatch):
    monkeypatch.setattr(planned, "usable_cpus", lambda: 4)


# K49 E14
def test_batches_and_states_are_those_of_the_inline_loader(tmp_path, four_cpus):
    feed = records(tmp_path / "r").shuffle().batch(8, pad="none")
    inline = tw.Loader(feed, epochs=2, workers=0, return_tensors="np", ledger=tmp_path / "a")
    ahead = tw.Loader(feed, epochs=2, return_tensors="np", ledger=tmp_path / "b")
    for one, other in zip(inline, ahead, strict=True):
        assert one.info.ids == other.info.ids
        assert all(np.array_equal(one[k], other[k]) for k in one)
        assert inline.state_dict() == ahead.state_dict()
    inline.close()
    ahead.close()
    assert not named("thalweg-read")
    files = [next((tmp_path / x).iterdir()).read_bytes().partition(b"\n")[2] for x in "ab"]
    assert files[0] == files[1]


def test_breaking_off_and_closing_end_the_thread(tmp_path, four_cpus):
    loader = tw.Loader(records(tmp_path / "r").batch(2, pad="none"), epochs=None, return_tensors="np")
    steps = iter(loader)
    list(islice(steps, 30))
    assert named("thalweg-read")
    state = loader.state_dict()
    loader.load_state_dict(state)
    assert not named("thalweg-read")
    list(islice(loader, 30))
    loader.close()
    assert not named("thalweg-read")


def test_objects_of_the_user_are_read_in_their_own_thread(four_cpus):
    threads = set()

    class Rows:
        lengths = np.full(200, 3)

        def __len__(self):
            return 200

        def __getitem__(self, i):
            threads.add(threading.current_thread())
            return {"input_ids": np.arange(3, dtype=np.int32)}

    list(tw.Loader(tw.from_dataset(Rows(), fingerprint="x").batch(4, pad="none"), return_tensors="np"))
    assert threads == {threading.current_thread()}
