"""Copies ahead: two batches before they are asked for, no buffer written while it is read, the state not moved."""

from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import pytest

import thalweg as tw

torch = pytest.importorskip("torch")
from thalweg.bind.torch.copies import Accelerator, Buffers, Copies  # noqa: E402


class Event:
    """Passes when the test says so."""

    def __init__(self):
        self.passed = False


class FakeDevice:
    """Reads a buffer as late as it can: when the copy's event passes. A buffer written before shows."""

    def __init__(self):
        self.copies, self.log, self.locked = [], [], 0

    def page_locked(self, nbytes):
        self.locked += 1
        return torch.zeros(nbytes, dtype=torch.uint8)

    def copy(self, tensors):
        there = {k: torch.empty_like(t) for k, t in tensors.items()}
        event = Event()
        self.copies.append((tensors, there, event))
        self.log.append("copy")
        return there, event

    def run(self, event):
        for tensors, there, mine in self.copies:
            if mine is event and not event.passed:
                for k in there:
                    there[k].copy_(tensors[k])
                event.passed = True

    def hand_over(self, tensors, event):
        self.run(event)
        self.log.append("hand over")

    def done(self, event):
        return event.passed


def feed(n=30):
    rows = [{"input_ids": np.full(1 + i % 5, i, np.int32)} for i in range(n)]
    return tw.from_dataset(rows).shuffle().pack(8, overlong="drop").batch(1)


class Loader(tw.Loader):
    def _find_finish(self, return_tensors, device):
        return Copies(device)


def test_two_batches_are_under_way_when_one_is_handed_over():
    device = FakeDevice()
    list(zip(range(5), Loader(feed(), device=device), strict=False))
    assert device.log[:4] == ["copy", "hand over", "copy", "hand over"]  # the first waits for none behind it
    assert device.log[4:] == ["copy", "copy", "hand over", "copy", "hand over", "copy", "hand over", "copy"]


def test_what_arrives_is_what_was_sent_though_buffers_are_used_again():
    device = FakeDevice()
    expected = [b["input_ids"].tolist() for b in tw.Loader(feed(), epochs=3)]
    got = [b["input_ids"].tolist() for b in Loader(feed(), epochs=3, device=device)]
    assert got == expected
    assert device.locked <= 4 < len(got)  # the one handed over, two ahead, one of another size


def test_the_state_is_that_of_the_batch_handed_over():  # K28
    plain, ahead = tw.Loader(feed(), epochs=2), Loader(feed(), epochs=2, device=FakeDevice())
    for a, b in zip(plain, ahead, strict=True):
        assert plain.state_dict() == ahead.state_dict()
        assert a.info.ids == b.info.ids
        assert (plain.step, plain.epoch) == (ahead.step, ahead.epoch)


def test_a_new_place_forgets_copies_that_were_under_way():
    device = FakeDevice()
    loader = Loader(feed(), epochs=None, device=device)
    it = iter(loader)
    seen = [next(it)["input_ids"].tolist() for _ in range(6)]
    loader.load_state_dict(tw.Loader(feed(), epochs=None).state_dict())
    assert [b["input_ids"].tolist() for b, _ in zip(loader, range(6), strict=False)] == seen
    assert len(loader._finish._under_way) <= 2


def test_a_buffer_is_used_again_only_after_the_event_of_its_copy():
    device = FakeDevice()
    buffers = Buffers(device)
    first, event = buffers.take(5000), Event()
    buffers.give(first, event)
    assert buffers.take(5000) is not first
    event.passed = True
    assert buffers.take(5000) is first
    assert first.numel() == 8192  # room for the next sizes: batches differ by a little


def test_batches_that_differ_by_a_little_share_a_buffer():
    device = FakeDevice()
    buffers = Buffers(device)
    for nbytes in (5000, 5100, 6000, 8000, 4097):
        event = Event()
        event.passed = True
        buffers.give(buffers.take(nbytes), event)
    assert buffers.made == device.locked == 1


def test_values_of_every_type_and_shape_arrive():
    copies = Copies(FakeDevice())
    values = {
        "f": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array([True, False]), "e": np.empty((0, 4), int),
        "s": np.array(2, np.float32), "n": 7, "none": None, "t": torch.arange(3, dtype=torch.bfloat16),
    }  # fmt: skip
    got = copies(tw.Batch(values))
    assert {k: v for k, v in got.items() if not isinstance(v, torch.Tensor)} == {"n": 7, "none": None}
    for name in ("f", "b", "e", "s"):
        assert np.array_equal(got[name].numpy(), values[name])
        assert got[name].numpy().dtype == np.asarray(values[name]).dtype
    assert got["t"].equal(values["t"])


class Module:
    """What torch has for a kind of device: streams and events that write down what is asked of them."""

    def __init__(self):
        self.log = []
        log = self.log

        class Stream:
            def __init__(self, device):
                self.device = device

            def wait_event(self, event):
                log.append(("the loop's stream waits", event))

        class Event:
            def record(self, stream):
                log.append(("recorded on", stream))

            def query(self):
                return 1

        self.Stream, self.Event = Stream, Event
        self.loop = Stream("loop")

    @contextmanager
    def stream(self, stream):
        self.log.append(("begin", stream))
        yield
        self.log.append(("end", stream))

    def current_stream(self, device):
        return self.loop


class Sent:
    """A tensor that says where it was sent, and who uses its memory."""

    def __init__(self, log):
        self.log = log

    def to(self, device, *, non_blocking):
        self.log.append(("copy", non_blocking))
        return self

    def record_stream(self, stream):
        self.log.append(("memory is kept for", stream))


def test_an_accelerator_copies_on_its_own_stream_with_an_event_behind_and_keeps_memory_for_the_loop(monkeypatch):
    module, empty = Module(), torch.empty
    monkeypatch.setattr(torch, "get_device_module", lambda _: module)
    locked = []

    def noted(nbytes, *, dtype, pin_memory=False):
        locked.append(pin_memory)
        return empty(nbytes, dtype=dtype)

    monkeypatch.setattr(torch, "empty", noted)
    device = Accelerator("somewhere:0")
    assert device.page_locked(64).numel() == 64
    assert locked == [True]
    there, event = device.copy({"a": Sent(module.log), "b": Sent(module.log)})
    own = device._stream
    assert own is not module.loop
    assert module.log == [("begin", own), ("copy", True), ("copy", True), ("recorded on", own), ("end", own)]
    assert device.done(event)
    module.log.clear()
    device.hand_over(there, event)
    assert module.log == [("the loop's stream waits", event), *[("memory is kept for", module.loop)] * 2]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no accelerator on this machine")
def test_copies_overlap_with_work_on_a_real_device():
    device = torch.device("cuda")
    assert isinstance(tw.Loader(feed(), device="cuda")._finish._device, Accelerator)
    expected = [b["input_ids"].tolist() for b in tw.Loader(feed(), epochs=3)]
    got = []
    for batch in tw.Loader(feed(), epochs=3, device="cuda"):
        torch.cuda._sleep(1_000_000)  # the consumer's stream is busy; copies run beside it
        assert batch["input_ids"].device.type == device.type
        got.append(batch["input_ids"])
    assert [g.tolist() for g in got] == expected


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no accelerator on this machine")
def test_the_loop_waits_less_than_one_percent_of_a_real_step():
    rows = [{"input_ids": np.full(2048, i, np.int32)} for i in range(4096)]
    loader = tw.Loader(tw.from_dataset(rows).shuffle().pack(8192).batch(4), device="cuda", epochs=None, max_steps=60)
    weight = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    marks = []
    for batch in loader:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        hidden = weight[batch["input_ids"].view(-1) % 8192]
        for _ in range(20):
            hidden = hidden @ weight
        end.record()
        marks.append((start, end))
    torch.cuda.synchronize()
    idle = sum(a[1].elapsed_time(b[0]) for a, b in pairwise(marks[10:]))
    assert idle < 0.01 * marks[10][0].elapsed_time(marks[-1][1])
