"""Reading, functions and training overlap; a rank reads its own share; a plan knows what a stream cannot."""

import ast
import threading
from pathlib import Path

import pytest

import thalweg as tw
from thalweg.feed.loader import FeedLoader

LONG = 30.0  # seconds after which a wait counts as never
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def source_of(rows, kind):
    return tw.from_dataset(rows) if kind == "planned" else tw.from_stream(lambda: iter(rows))


class Made:
    """Counts what functions made, so that a loop can wait for it as training waits."""

    def __init__(self):
        self.ids, self._grown = [], threading.Condition()

    def note(self, *ids):
        with self._grown:
            self.ids += ids
            self._grown.notify_all()

    def fn(self, sample):
        self.note(int(sample["input_ids"][0]))
        return sample

    def comes_to(self, n):
        with self._grown:
            return self._grown.wait_for(lambda: len(self.ids) >= n, LONG)


@pytest.fixture
def made():
    return Made()


# E4
@pytest.mark.parametrize("kind", ["planned", "stream"])
def test_functions_work_on_later_samples_while_the_loop_holds_a_batch(kind):
    """With stages one after the other this would wait for ever: the loop waits for a call behind the batch it holds."""
    holding, later = threading.Event(), threading.Event()

    def fn(sample):
        if sample["input_ids"][0] >= 2 and holding.wait(LONG):
            later.set()
        return sample

    rows = [{"input_ids": [n, n]} for n in range(64)]
    head = source_of(rows, kind)
    feed = head.map(fn, mode="threads", workers=2).batch(2)
    assert feed.kind == ("planned" if kind == "planned" else "stream")
    loader = FeedLoader(feed, topology=tw.Topology(), prefetch=2)
    batches = iter(loader)
    assert next(batches)["input_ids"].tolist() == [[0, 0], [1, 1]]
    holding.set()  # training begins
    assert later.wait(LONG)  # and the functions go on meanwhile
    assert [b["input_ids"][0, 0] for b in batches] == list(range(2, 64, 2))
    loader.close()


# E4
@pytest.mark.parametrize("kind", ["planned", "stream"])
def test_two_calls_of_a_function_run_at_the_same_time(kind):
    both = threading.Barrier(2)

    def fn(sample):
        both.wait(LONG)  # breaks, and fails the test, where calls wait for each other
        return sample

    head = source_of([{"input_ids": [n]} for n in range(40)], kind)
    loader = FeedLoader(head.map(fn, mode="threads", workers=2).batch(2), topology=tw.Topology())
    assert sum(len(b["input_ids"]) for b in loader) == 40
    loader.close()


# E4
@pytest.mark.parametrize("kind", ["planned", "stream"])
@pytest.mark.parametrize("prefetch", [1, 5])
def test_as_many_batches_are_made_ahead_as_prefetch_says_while_the_loop_holds_one(made, kind, prefetch):
    head = source_of([{"input_ids": [n]} for n in range(4000)], kind)
    feed = head.map(made.fn, mode="threads", workers=1).batch(1)
    loader = FeedLoader(feed, topology=tw.Topology(), prefetch=prefetch)
    batches = iter(loader)
    next(batches)
    assert made.comes_to(1 + prefetch)  # while training holds the first
    loader.close()


# E4
def test_a_stream_lays_out_as_many_batches_ahead_as_prefetch_says_while_the_loop_holds_one(made):
    def collate(samples):
        made.note(len(samples))
        return {"input_ids": samples[0]["input_ids"]}

    feed = source_of([{"input_ids": [n]} for n in range(100)], "stream").batch(2, collate=collate)
    loader = FeedLoader(feed, topology=tw.Topology(), prefetch=5)
    batches = iter(loader)
    next(batches)
    assert made.comes_to(1 + 5)  # while training holds the first
    loader.close()


class Counted:
    """A source that counts the samples that are read."""

    lengths = None

    def __init__(self, n):
        self.n, self.read = n, 0

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        self.read += 1
        return {"input_ids": [index, index]}


def test_a_rank_of_64_reads_a_64th_of_the_data():  # E59
    """What a rank has to do for a step does not grow with the ranks; benchmarks/bench_waiting.py measures its wait."""
    source = Counted(64 * 200)
    feed = tw.from_dataset(source, fingerprint="counted").shuffle(seed=1).batch(2)
    loader = FeedLoader(feed, topology=tw.Topology(17, 64), workers=0)
    source.read = 0
    assert sum(len(b["input_ids"]) for b in loader) == 200
    assert source.read <= 200 + 64  # ids and the columns of the first rows are looked up too
    loader.close()


# E59
@pytest.mark.parametrize("rank", [0, 17, 63])
def test_the_next_batch_of_a_rank_of_64_is_there_whenever_its_loop_asks(made, rank):
    """The step of training ends when the functions of the next batch have run, which must come without being asked."""
    source = tw.from_dataset([{"input_ids": [n, n]} for n in range(64 * 40)], fingerprint="fed")
    feed = source.shuffle(seed=1).map(made.fn, mode="threads", workers=2).batch(2)
    loader = FeedLoader(feed, topology=tw.Topology(rank, 64), prefetch=2)
    seen = []
    for n, batch in enumerate(loader, 1):
        seen += batch["input_ids"][:, 0].tolist()
        assert made.comes_to(min(40, 2 * (n + 1))), "nothing was made ahead, while training held a batch"
    loader.close()
    assert len(seen) == 40
    assert sorted(seen) == sorted(made.ids)  # and a rank makes no sample of another
    alone = FeedLoader(source.shuffle(seed=1).batch(2), topology=tw.Topology(), workers=0)
    rows = [int(n) for batch in alone for n in batch["input_ids"][:, 0]]
    assert seen == [n for at in range(2 * rank, len(rows), 128) for n in rows[at : at + 2]]


PATH = ("tw.from_", ".cache()", ".shuffle()", ".pack(", ".batch(", "tw.Loader(", "model(**batch)", "backward()")


def test_a_whole_path_is_fewer_than_fifty_lines():  # E58
    """From raw conversations to packed, masked, shuffled, resumable batches: examples, which CI runs as they are."""
    whole = {name: (EXAMPLES / name).read_text("utf-8") for name in ("chat_sft.py", "plain_loop.py")}
    for name, text in whole.items():
        assert len(text.splitlines()) <= 50, name
    assert [part for part in PATH if part not in whole["chat_sft.py"]] == []
    assert "load_state_dict(state)" in whole["plain_loop.py"]
    tree = ast.parse(whole["chat_sft.py"])
    data = [n for n in tree.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) in {"feed", "loader"}]
    assert sum(n.end_lineno - n.lineno + 1 for n in data) <= 5  # the data side itself


def test_a_plan_is_reproducible_and_knows_its_steps_and_a_stream_asks_for_max_steps():  # C43
    rows = [{"input_ids": [n] * (n % 5 + 1)} for n in range(90)]
    plan = tw.from_dataset(rows).shuffle(seed=3).pack(8).batch(2)
    stream = tw.from_stream(lambda: iter(rows)).pack(8, policy="fill", overlong="drop").batch(2)

    def loader(feed, **more):
        return FeedLoader(feed, topology=tw.Topology(), workers=0, **more)

    counted = len(loader(plan))
    runs = [[b["input_ids"].tolist() for b in loader(plan)] for _ in range(2)]
    assert runs[0] == runs[1]
    assert len(runs[0]) == counted == loader(plan).steps_per_epoch
    assert len(loader(plan, max_steps=3)) == len(list(loader(plan, max_steps=3))) == 3
    with pytest.raises(TypeError, match="a stream has no length"):
        len(loader(stream))
    assert len(list(loader(stream, epochs=None, max_steps=7))) == 7
