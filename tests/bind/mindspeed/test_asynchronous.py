"""Promises A1 to A57: the asynchronous wrapper of the reference document."""

import gc
import json
import random
import sys
import threading
import types

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler

from thalweg.bind.mindspeed import AsyncPreprocessIterableDataset, DistributedIterableDataset
from thalweg.bind.mindspeed.asynchronous import normalised
from thalweg.core.errors import ConfigError, SampleError, StateError, WorkerError

pytestmark = pytest.mark.filterwarnings("ignore:.set_vital. is deprecated")


@pytest.fixture(autouse=True)
def no_thread_left():
    yield
    gc.collect()
    for t in threading.enumerate():
        if t.name.startswith("thalweg-"):
            t.join(60)
    assert [t.name for t in threading.enumerate() if t.name.startswith("thalweg-")] == []


def double(batch):
    return {"id": [i * 2 for i in batch["id"]]}


def expand(batch):
    n = batch["id"][0] % 4
    return {"id": batch["id"] * n, "part": list(range(n))}


def source(n):
    return [{"id": i} for i in range(n)]


def pairs(n):
    return [(i, k) for i in range(n) for k in range(i % 4)]


class Stream:
    """An iterable without len, that says who reads it."""

    def __init__(self, n):
        self.n, self.readers, self.calls, self.epochs = n, set(), 0, []

    def __iter__(self):
        for i in range(self.n):
            self.readers.add(threading.current_thread())
            self.calls += 1
            yield {"id": i}

    def set_epoch(self, epoch):
        self.epochs.append(epoch)


@given(n=st.integers(0, 60), buffer=st.integers(1, 12), workers=st.integers(1, 12), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_order_is_that_of_the_source_at_any_latency_buffer_and_workers(n, buffer, workers, seed):
    # A2 A8 A10 A14 A16
    draw = random.Random(seed)
    delay = [draw.random() * 0.002 for _ in range(n)]

    def fn(batch):
        threading.Event().wait(delay[batch["id"][0]])
        return expand(batch)

    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ds = AsyncPreprocessIterableDataset(source(n), fn, buffer, workers)
    assert [(s["id"], s["part"]) for s in ds] == pairs(n)


def test_a_batched_function_is_reused_as_it_is_and_sees_one_sample_a_call():
    # A5 A6 A7 A25 A26 A27
    seen = []

    def fn(batch):
        assert isinstance(batch, dict)
        seen.append({k: len(v) for k, v in batch.items()})
        return {"length": [len(t) for t in batch["text"]], "text": batch["text"]}

    data = [{"text": "a" * i, "other": i} for i in range(20)]
    for buffer in (1, 8, 16):
        out = list(AsyncPreprocessIterableDataset(data, fn, buffer, 1))
        assert out == [{"length": i, "text": "a" * i} for i in range(20)]  # the sample is replaced, not merged
    assert all(s == {"text": 1, "other": 1} for s in seen)
    assert len(seen) == 60


@pytest.mark.parametrize("nothing", [None, {}, {"id": []}, {"id": [], "part": []}])
def test_nothing_drops_the_sample_and_stalls_nobody(nothing):
    # A9
    ds = AsyncPreprocessIterableDataset(source(50), lambda b: nothing if b["id"][0] % 3 else b, 4, 4)
    assert [s["id"] for s in ds] == list(range(0, 50, 3))
    assert list(AsyncPreprocessIterableDataset(source(50), lambda b: nothing, 4, 4)) == []


def test_columns_of_different_lengths_are_an_error_at_their_place():
    # A7: the original ended without a word
    def fn(batch):
        return {"id": batch["id"], "x": [1, 2]} if batch["id"][0] == 9 else batch

    got = []
    with pytest.raises(SampleError, match="different lengths"):
        [got.append(s["id"]) for s in AsyncPreprocessIterableDataset(source(20), fn, 4, 4)]
    assert got == list(range(9))


def test_one_thread_reads_and_workers_never_do():
    # A11 A12 A22
    stream, callers = Stream(40), set()

    def fn(batch):
        callers.add(threading.current_thread())
        return batch

    assert len(list(AsyncPreprocessIterableDataset(stream, fn, 8, 4))) == 40
    assert len(stream.readers) == 1
    assert stream.calls == 40
    assert not stream.readers & callers
    assert threading.current_thread() not in stream.readers | callers


def test_workers_run_at_the_same_time_and_next_does_not_wait_for_what_is_ready():
    # A3 A4: four calls meet; then results are there before they are asked for
    barrier, done = threading.Barrier(4), threading.Semaphore(0)

    def fn(batch):
        barrier.wait(20)
        done.release()
        return batch

    it = iter(AsyncPreprocessIterableDataset(source(8), fn, 8, 4))
    assert next(it)["id"] == 0
    for _ in range(8):
        assert done.acquire(timeout=20)  # all eight were called while the consumer had taken one
    assert [s["id"] for s in it] == list(range(1, 8))


def test_messages_have_the_kinds_and_numbers_of_the_document():
    # A13 A14 A15
    messages = []
    ds = AsyncPreprocessIterableDataset(source(30), expand, 8, 3, on_message=lambda *m: messages.append(m))
    for _ in range(2):
        messages.clear()
        out = list(ds)
        results = {index: items for kind, index, items in messages if kind == "result"}
        assert sorted(results) == list(range(30))
        assert [s for i in range(30) for s in results[i]] == out
        assert [m for m in messages if m[0] == "done"] == [("done", None, None)] * 3
        assert {m[0] for m in messages} == {"result", "done"}

    def fail(batch):
        raise LookupError("text")

    ds = AsyncPreprocessIterableDataset(source(3), fail, 1, 1, on_message=lambda *m: messages.append(m))
    with pytest.raises(LookupError):
        list(ds)
    kind, text, error = next(m for m in messages if m[0] == "error")
    assert (kind, text, type(error)) == ("error", "text", LookupError)


@pytest.mark.parametrize("bound", ["training", "input", "balanced"])
def test_an_error_of_a_worker_never_vanishes_at_any_relative_speed(bound):
    # A18 A19 A20: the original lost 8 of 8 when training was slow
    calls = []

    def fn(batch):
        calls.append(batch["id"][0])
        if batch["id"][0] == 30:
            raise ValueError("broken sample")
        if bound != "training":
            threading.Event().wait(0.001)
        return batch

    for _ in range(20):
        calls.clear()
        got = []
        with pytest.raises(ValueError, match="broken sample") as caught:
            for s in AsyncPreprocessIterableDataset(source(60), fn, 8, 4):
                got.append(s["id"])
                if bound != "input":
                    threading.Event().wait(0.001)
        assert got == list(range(30))
        assert any("sample '30'" in note for note in caught.value.__notes__)
        assert max(calls) <= 30 + 8


def test_an_error_of_the_source_never_vanishes():
    # A17: the original lost 8 of 20
    class Broken:
        def __iter__(self):
            yield from source(17)
            raise OSError("connection lost")

    for _ in range(30):
        got = []
        with pytest.raises(OSError, match="connection lost"):
            [got.append(s["id"]) for s in AsyncPreprocessIterableDataset(Broken(), double, 4, 4)]
        assert got == [2 * i for i in range(17)]


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, StopIteration])
def test_an_error_that_would_end_the_program_or_the_data_is_an_error(error):
    # A18: the original hung
    def fn(batch):
        if batch["id"][0] == 5:
            raise error
        return batch

    got = []
    with pytest.raises(WorkerError) as caught:
        [got.append(s["id"]) for s in AsyncPreprocessIterableDataset(source(20), fn, 4, 4)]
    assert got == list(range(5))
    assert isinstance(caught.value.__cause__, error)


@pytest.mark.parametrize("leave", ["break", "error", "close", "collect", "never"])
def test_no_thread_survives_however_iteration_ends(leave):
    # A21 (with the fixture)
    ds = AsyncPreprocessIterableDataset(Stream(10**9), double, 4, 4)
    it = iter(ds)
    if leave == "break":
        for _ in it:
            break
    elif leave == "error":
        with pytest.raises(ZeroDivisionError):
            for _ in it:
                1 / 0  # noqa: B018
    elif leave == "close":
        next(it)
        it.close()
    elif leave == "collect":
        next(it)
    del it, ds


def test_iterating_twice_gives_two_full_passes():
    # A23
    ds = AsyncPreprocessIterableDataset(source(25), expand, 4, 4)
    first = list(ds)
    next(iter(ds))
    assert list(ds) == first == list(ds)


def test_a_slow_first_sample_bounds_what_is_read():
    # A24: the original held 97,494
    stream, hold = Stream(100_000), threading.Event()

    def fn(batch):
        if batch["id"][0] == 0:
            hold.wait(20)
        return batch

    first = []
    it = iter(AsyncPreprocessIterableDataset(stream, fn, 8, 8))
    consumer = threading.Thread(target=lambda: first.append(next(it)))
    consumer.start()
    while stream.calls < 8:
        threading.Event().wait(0.001)
    threading.Event().wait(0.05)
    assert stream.calls == 8
    hold.set()
    consumer.join(20)
    assert first == [{"id": 0}]
    it.close()


@pytest.mark.parametrize(
    ("given_", "cpus", "expected"),
    [
        ((None, None), 2, (8, 2)),  # A28
        ((None, None), 64, (8, 8)),
        ((16, None), 2, (16, 2)),  # A29
        ((1000, None), 2, (1000, 2)),
        ((3, None), 64, (3, 3)),
        ((None, 16), 2, (16, 16)),  # A30
        ((4, 16), 2, (4, 16)),  # A31
        ((16, 4), 2, (16, 4)),
        ((0, 0), 2, (1, 1)),  # A32
        ((-5, None), 2, (1, 1)),
        ((None, -3), 2, (1, 1)),
    ],
)
def test_buffer_and_workers_are_settled_by_the_documents_rules(given_, cpus, expected):
    # A28 A29 A30 A31 A32
    assert normalised(*given_, cpus) == expected


class Ahead:
    """A stream that knows how far it was read ahead of what was handed over."""

    def __init__(self, n):
        self.n, self.handed, self.most = n, 0, 0

    def __iter__(self):
        for i in range(self.n):
            self.most = max(self.most, i - self.handed)
            yield {"id": i}


@pytest.mark.parametrize(("buffer", "workers", "reached"), [(2, 4, 2), (4, 4, 4), (8, 4, 4)])
@pytest.mark.filterwarnings("ignore:buffer_size")
def test_as_many_calls_run_at_once_as_workers_and_buffer_allow(buffer, workers, reached):
    # A53: a buffer below the workers leaves some idle, and one above them adds no call at the same time
    running, most, lock, full, ahead = 0, 0, threading.Lock(), threading.Event(), Ahead(200)

    def fn(batch):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
            if running == reached:
                full.set()
        assert full.wait(20)
        with lock:
            running -= 1
        return batch

    for _ in AsyncPreprocessIterableDataset(ahead, fn, buffer, workers):
        ahead.handed += 1
    assert ahead.handed == 200
    assert most == reached
    assert ahead.most <= buffer


@pytest.mark.parametrize("buffer", [4, 32])
def test_a_larger_buffer_changes_nothing_where_training_is_slower(buffer):
    # A53: at every step the next sample is there before it is asked for, with any buffer, and no more than it are
    done, ahead = [threading.Event() for _ in range(200)], Ahead(200)

    def fn(batch):
        done[batch["id"][0]].set()
        return batch

    for i, sample in enumerate(AsyncPreprocessIterableDataset(ahead, fn, buffer, 2)):
        assert sample == {"id": i}
        ahead.handed += 1
        if i + 1 < 200:
            assert done[i + 1].wait(20)  # training
    assert ahead.most <= buffer


def test_a_buffer_below_the_workers_is_a_warning():
    # A31 A53
    with pytest.warns(UserWarning, match="buffer_size=2 is below num_workers=4"):
        ds = AsyncPreprocessIterableDataset(source(20), double, 2, 4)
    assert (ds.buffer_size, ds.num_workers) == (2, 4)
    assert len(list(ds)) == 20


@pytest.mark.parametrize("workers", [4, 8])
def test_the_recommended_start_values_run_on_a_small_machine(workers):
    # A55
    ds = AsyncPreprocessIterableDataset(source(300), expand, workers, workers)
    assert [(s["id"], s["part"]) for s in ds] == pairs(300)


@given(n=st.integers(0, 80), world=st.integers(1, 8))
@settings(max_examples=40, deadline=None)
def test_ranks_get_disjoint_parts_that_are_all_together(n, world):
    # A33 A34 A35
    parts = [[s["id"] for s in DistributedIterableDataset(source(n), num_dp=world, dp_rank=r)] for r in range(world)]
    for r, part in enumerate(parts):
        assert part == [i for i in range(n) if i % world == r]
    assert sorted(i for p in parts for i in p) == list(range(n))
    whole = AsyncPreprocessIterableDataset(source(n), lambda b: b, 4, 2)
    assert [s["id"] for s in whole] == list(range(n))  # the wrapper itself divides nothing


def test_each_rank_preprocesses_its_own_samples_only_and_filters_move_no_border():
    # A36 A37 A57
    calls = []

    def fn(batch):
        calls.append(batch["id"][0])
        return batch if batch["id"][0] % 5 else {}

    def rank(r, f):
        return [s["id"] for s in AsyncPreprocessIterableDataset(
            DistributedIterableDataset(source(60), num_dp=3, dp_rank=r), f, 4, 3)]  # fmt: skip

    filtered = [rank(r, fn) for r in range(3)]
    assert sorted(calls) == list(range(60))
    plain = [rank(r, lambda b: b) for r in range(3)]
    assert filtered == [[i for i in part if i % 5] for part in plain]


def fake(monkeypatch, name, **functions):
    module = types.ModuleType(name)
    for key, value in functions.items():
        setattr(module, key, value)
    monkeypatch.setitem(sys.modules, name, module)


def test_megatron_peers_of_a_rank_read_the_same_samples(monkeypatch):
    # A38
    fake(
        monkeypatch, "megatron.core.parallel_state", model_parallel_is_initialized=lambda: True,
        get_data_parallel_world_size=lambda: 4, get_data_parallel_rank=lambda: 3,
    )  # fmt: skip
    assert [s["id"] for s in DistributedIterableDataset(source(10))] == [3, 7]
    assert [s["id"] for s in DistributedIterableDataset(source(10), num_dp=2, dp_rank=0)] == [0, 2, 4, 6, 8]


def test_fsdp2_takes_the_data_parallel_rank_of_the_mesh_not_the_global_one(monkeypatch):
    # A39: mesh (dp, ulysses, ring, tp) with tp innermost; the original took global rank % D
    for world_rank, dp in enumerate([0, 0, 1, 1]):
        state = types.SimpleNamespace(get_dp_group_size=lambda: 2, get_dp_rank=lambda dp=dp: dp)
        fake(
            monkeypatch, "mindspeed_mm.fsdp.distributed.parallel_state",
            is_parallel_state_initialized=lambda: True, get_parallel_state=lambda state=state: state,
        )  # fmt: skip
        ds = DistributedIterableDataset(source(6), world_rank)
        assert [s["id"] for s in ds] == [dp, dp + 2, dp + 4]


def test_several_processes_without_a_parallel_state_are_refused(monkeypatch):
    # A39
    import torch.distributed as dist

    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 4)
    with pytest.raises(ConfigError, match="4 processes run, and no parallel state"):
        DistributedIterableDataset(source(6), 1)
    with pytest.raises(ConfigError, match="both num_dp and dp_rank"):
        DistributedIterableDataset(source(6), num_dp=4)
    with pytest.raises(ConfigError, match="does not fit"):
        DistributedIterableDataset(source(6), num_dp=4, dp_rank=4)


def test_the_two_rank_example_holds_back_what_is_early():
    # A40 A41
    late = threading.Event()

    def fn(batch):
        if batch["id"][0] == 0:
            assert late.wait(20)
        if batch["id"][0] == 2:
            late.set()
        return batch

    messages = []
    zero = AsyncPreprocessIterableDataset(
        DistributedIterableDataset(source(6), num_dp=2, dp_rank=0), fn, 4, 2, on_message=lambda *m: messages.append(m)
    )
    assert [s["id"] for s in zero] == [0, 2, 4]
    order = [index for kind, index, _ in messages if kind == "result"]
    assert order.index(1) < order.index(0)  # s2 came first, as number 1, and was held back
    one = AsyncPreprocessIterableDataset(DistributedIterableDataset(source(6), num_dp=2, dp_rank=1), fn, 4, 2)
    assert [s["id"] for s in one] == [1, 3, 5]


def test_any_value_survives():
    # A52
    data = [{"text": "ü", "image": np.arange(12).reshape(3, 4), "video": [np.ones(2)], "audio": b"\x00\x01", "id": 1}]
    out = list(AsyncPreprocessIterableDataset(data, lambda b: b, 1, 1))
    assert out[0]["text"] == "ü"
    assert out[0]["audio"] == b"\x00\x01"
    assert isinstance(out[0]["image"], np.ndarray)
    assert (out[0]["image"] == data[0]["image"]).all()
    assert out[0]["video"][0].sum() == 2


def test_two_runs_of_one_setting_are_the_same():
    # A50
    def fn(batch):
        threading.Event().wait(random.random() * 0.001)
        return expand(batch)

    runs = [list(AsyncPreprocessIterableDataset(source(80), fn, 8, 8)) for _ in range(3)]
    assert runs[0] == runs[1] == runs[2]


@pytest.mark.parametrize("distributed", [False, True])
def test_a_state_after_any_sample_continues_with_the_next(distributed):
    # A51: also between two samples that came from one, twice from one state, and at once after loading
    def make(workers=4):
        data = DistributedIterableDataset(source(90), num_dp=2, dp_rank=1) if distributed else source(45)
        return AsyncPreprocessIterableDataset(data, expand, 8, workers)

    ds, states, whole = make(), [], []
    states.append(ds.state_dict())
    for sample in ds:
        whole.append(sample)
        states.append(json.loads(json.dumps(ds.state_dict())))
    for k, state in enumerate(states):
        again = make(workers=1 + k % 5)
        again.load_state_dict(state)
        assert again.state_dict()["place"] == state["place"]
        assert list(again) == whole[k:], k
        again.load_state_dict(state)
        assert list(again) == whole[k:], k


def test_a_resume_calls_the_function_no_more_than_the_buffer_again():
    # A51: the original replayed all
    calls = []

    def fn(batch):
        calls.append(batch["id"][0])
        return batch

    ds = AsyncPreprocessIterableDataset(source(1000), fn, 8, 2)
    it = iter(ds)
    for _ in range(500):
        next(it)
    state = ds.state_dict()
    it.close()
    calls.clear()
    ds.load_state_dict(state)
    it = iter(ds)
    assert next(it) == {"id": 500}
    it.close()
    assert min(calls) == 500
    assert max(calls) <= 500 + 8


def test_a_state_of_something_else_is_refused():
    ds = AsyncPreprocessIterableDataset(source(5), double)
    with pytest.raises(StateError):
        ds.load_state_dict({"kind": "other", "version": 1})
    with pytest.raises(StateError, match="DataLoader workers"):
        ds.load_state_dict({**ds.state_dict(), "workers": 2})
    shard = DistributedIterableDataset(source(5), num_dp=2, dp_rank=0)
    with pytest.raises(StateError, match="rank 0 of 2"):
        DistributedIterableDataset(source(5), num_dp=2, dp_rank=1).load_state_dict(shard.state_dict())


def test_the_epoch_reaches_the_source_through_both_wrappers():
    # K49
    stream = Stream(5)
    ds = AsyncPreprocessIterableDataset(DistributedIterableDataset(stream, num_dp=1, dp_rank=0), double, 2, 2)
    for epoch in range(3):
        ds.set_epoch(epoch)
        assert len(list(ds)) == 5
    assert stream.epochs == [0, 1, 2]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("loader", ["torch", "stateful"])
def test_both_loaders_take_it_and_batches_follow_the_source(workers, loader):
    # A1 A42 A46
    if loader == "stateful":
        made = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    else:
        made = DataLoader
    ds = AsyncPreprocessIterableDataset(DistributedIterableDataset(source(24), num_dp=2, dp_rank=1), double, 4, 2)
    assert isinstance(ds, IterableDataset)
    dl = made(ds, batch_size=1, num_workers=workers, multiprocessing_context="fork" if workers else None)
    for _ in range(2):
        assert [int(b["id"][0]) for b in dl] == [2 * i for i in range(1, 24, 2)]


@pytest.mark.parametrize("workers", [0, 2])
def test_the_stateful_loader_continues_exactly(workers):
    # A1 A51 K30
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader

    def make():
        ds = AsyncPreprocessIterableDataset(source(40), expand, 4, 2)
        return stateful(
            ds, batch_size=3, num_workers=workers, multiprocessing_context="fork" if workers else None,
            collate_fn=list,
        )  # fmt: skip

    whole = list(make())
    for k in (0, 1, 4, 7):
        dl = make()
        it = iter(dl)
        for _ in range(k):
            next(it)
        state = dl.state_dict()
        del it
        again = make()
        again.load_state_dict(state)
        assert list(again) == whole[k:], k


@pytest.mark.slow
@pytest.mark.parametrize("context", ["fork", "forkserver", "spawn"])
def test_it_works_inside_loader_workers_however_they_start(context):
    # A1 A21 K41: also after tokenizer threads have run in the parent
    from tokenizers import Tokenizer, models

    Tokenizer(models.BPE()).encode_batch(["a", "b"] * 100)
    ds = AsyncPreprocessIterableDataset(source(30), double, 4, 2)
    dl = DataLoader(ds, batch_size=1, num_workers=2, multiprocessing_context=context)
    assert [int(b["id"][0]) for b in dl] == [2 * i for i in range(30)]


def test_samplers_that_need_a_length_are_refused_with_advice():
    # A47 A48 A54
    ds = AsyncPreprocessIterableDataset(source(5), double)
    for call in (lambda: len(ds), lambda: ds[0], lambda: BatchSampler(RandomSampler(ds), 2, False)):
        with pytest.raises(TypeError, match="dataloader_mode 'base'"):
            call()
    with pytest.raises(ValueError, match="shuffle"):
        DataLoader(ds, shuffle=True)
    with pytest.raises(TypeError, match="streaming: false"):
        len(DistributedIterableDataset(source(5)))


def test_processes_give_the_same_as_threads():
    # A2 A3
    offset = 7

    def fn(batch):
        return {"id": [i + offset for i in batch["id"]] * (batch["id"][0] % 3)}

    want = list(AsyncPreprocessIterableDataset(source(60), fn, 8, 2))
    assert list(AsyncPreprocessIterableDataset(source(60), fn, 8, 2, mode="processes")) == want
    assert list(AsyncPreprocessIterableDataset(source(60), fn, 8, 2, mode="inline")) == want


@pytest.mark.parametrize("shards", [1, 3])
def test_a_hub_stream_keeps_its_place_through_all_wrappers(shards):
    # A42 A51 K28
    datasets = pytest.importorskip("datasets")
    base = datasets.Dataset.from_dict({"id": list(range(500))})

    def make():
        stream = base.to_iterable_dataset(num_shards=shards).map(lambda s: {"id": s["id"]})
        return AsyncPreprocessIterableDataset(DistributedIterableDataset(stream, num_dp=2, dp_rank=1), expand, 8, 2)

    whole = list(make())
    assert len(whole) == sum(i % 4 for i in range(1, 500, 2))
    for k in (0, 1, 100, 151, 302, len(whole) - 1):
        ds = make()
        it = iter(ds)
        for _ in range(k):
            next(it)
        state = json.loads(json.dumps(ds.state_dict()))
        it.close()
        again = make()
        again.load_state_dict(state)
        assert list(again) == whole[k:], k


def test_workers_of_a_loader_share_a_hub_stream_that_would_divide_itself_by_worker_too():
    # A42 A35 K28
    datasets = pytest.importorskip("datasets")
    stream = datasets.Dataset.from_dict({"id": list(range(24))}).to_iterable_dataset(num_shards=4)
    shard = DistributedIterableDataset(stream, num_dp=2, dp_rank=1)
    for dataset in (shard, AsyncPreprocessIterableDataset(shard, lambda b: b, 4, 2)):
        loader = DataLoader(dataset, batch_size=1, num_workers=2, multiprocessing_context="fork")
        assert [int(b["id"][0]) for b in loader] == list(range(1, 24, 2))
