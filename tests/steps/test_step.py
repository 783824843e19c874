"""The protocol of a step: what is legal, lazy, checked and counted."""

import gc
from typing import ClassVar

import pytest

from thalweg.core.document import Document
from thalweg.core.errors import MissingExtraError
from thalweg.run.chain import Chain
from thalweg.steps import BaseFilter, LambdaFilter, LengthFilter, PipelineStep, RegexFilter, SamplerFilter


def documents(n):
    return [Document(f"text {i}", str(i), metadata={"i": i}) for i in range(n)]


def run(pipeline, rank=0, world=1):
    out = []

    def collect(data, rank, world_size):
        for item in data:
            out.append(item)
            yield item

    chain = Chain([*pipeline, collect], rank, world)
    chain.drain()
    return out, chain.stats()


# D1
def test_a_generator_function_and_a_list_of_documents_are_legal_steps():
    def upper(data, rank, world_size):
        for doc in data:
            doc.text = doc.text.upper()
            yield doc

    out, stats = run([documents(3), upper])
    assert [d.text for d in out] == ["TEXT 0", "TEXT 1", "TEXT 2"]
    assert [(s.id, s.tally.out) for s in stats][:2] == [("0:documents", 3), ("1:upper", 3)]


# D1
def test_documents_given_as_a_list_are_dealt_to_ranks_once():
    seen = [d.id for rank in range(3) for d in run([documents(10)], rank, 3)[0]]
    assert sorted(seen, key=int) == [str(i) for i in range(10)]


# D2
def test_composition_pulls_no_document():
    pulled = []

    def source(data, rank, world_size):
        for doc in documents(2):
            pulled.append(doc)
            yield doc

    chain = Chain([source, LambdaFilter(lambda d: True), LengthFilter(1)], 0, 1)
    assert pulled == []
    chain.drain()
    assert len(pulled) == 2


# D3
def test_a_chain_holds_a_bounded_number_of_documents():
    class Counted(Document):
        alive = 0
        most = 0

        def __init__(self, *a):
            super().__init__(*a)
            Counted.alive += 1
            Counted.most = max(Counted.most, Counted.alive)

        def __del__(self):
            Counted.alive -= 1

    def source(data, rank, world_size):
        for i in range(20_000):
            yield Counted("some text", str(i))

    chain = Chain([source, LambdaFilter(lambda d: True), LengthFilter(1)], 0, 1)
    chain.drain()
    gc.collect()
    assert Counted.most < 10


class Needy(PipelineStep):
    _requires_dependencies: ClassVar = [("no_such_module_abc", "no-such-package")]


class Child(Needy):
    _requires_dependencies: ClassVar = ["numpy"]


# D4
def test_a_missing_dependency_of_a_base_class_is_named_with_its_pip_command_when_built():
    with pytest.raises(MissingExtraError, match=r"Child needs no_such_module_abc.*pip install no-such-package"):
        Child()


# D4
def test_the_default_run_lets_everything_pass_and_values_and_times_are_counted():
    class Mine(PipelineStep):
        def run(self, data, rank=0, world_size=1):
            for doc in data:
                with self.track_time():
                    self.stat_update("words", value=len(doc.text.split()), unit="doc")
                self.update_doc_stats(doc)
                yield doc

    class Plain(PipelineStep):
        pass

    step = Mine()
    assert list(Plain()(documents(3))) == documents(3)
    assert list(step(documents(4))) == documents(4)
    assert (step.stats["words"].total, step.stats["words"].n) == (8, 4)
    assert step.stats.time_stats.n == 4
    assert step.stats["doc_len"].mean == len("text 0")


# D6 D30
def test_every_drop_is_counted_with_a_reason_and_the_books_balance():
    def silent(data, rank, world_size):
        for doc in data:
            if doc.metadata["i"] % 10:
                yield doc

    rules = [
        silent,
        LambdaFilter(lambda d: (d.metadata["i"] % 3 > 0, "third")),
        LambdaFilter(lambda d: d.metadata["i"] % 5 > 0),
        LengthFilter(7, 100),
        RegexFilter(r"1\d"),
    ]
    out, stats = run([documents(100), *rules])
    reasons = [dict(s.tally.dropped) for s in stats]
    left, expected = list(range(100)), []
    for name, keep in (
        ("not_yielded", lambda i: i % 10),
        ("third", lambda i: i % 3),
        ("filtered", lambda i: i % 5),
        ("too_short", lambda i: i > 9),
        ("regex", lambda i: i not in range(10, 20)),
    ):
        kept = [i for i in left if keep(i)]
        expected.append({name: len(left) - len(kept)})
        left = kept
    assert reasons == [{}, *expected, {}]
    assert stats.unbalanced == []
    assert [d.metadata["i"] for d in out] == left


# D30
def test_books_that_do_not_add_up_are_reported():
    class Forgetful(LengthFilter):
        def run(self, data, rank=0, world_size=1):
            yield from list(data)[1:]

    Forgetful.__module__ = "thalweg.steps.pretended"
    _, stats = run([documents(5), Forgetful(0)])
    assert [s.id for s in stats.unbalanced] == ["1:Forgetful"]
    assert stats.unbalanced[0].tally.balance == 1


def test_a_sample_depends_on_seed_and_id_alone():
    def kept(seed, docs, world=1):
        return {d.id for r in range(world) for d in run([docs, SamplerFilter(0.3, seed)], r, world)[0]}

    docs = documents(2000)
    assert kept(1, docs) == kept(1, docs[::-1]) == kept(1, docs, 7)
    assert kept(1, docs) != kept(2, docs)
    assert 500 < len(kept(1, docs)) < 700


def test_a_filter_in_batches_decides_like_one_by_one():
    class Batched(BaseFilter):
        def filter(self, doc):
            return self.filter_batch([doc])[0]

        def filter_batch(self, batch):
            return [(d.metadata["i"] % 2 == 0, "odd") for d in batch]

    one, _ = run([documents(25), Batched()])
    out, stats = run([documents(25), Batched(batch_size=4)])
    assert out == one
    assert [d.metadata["i"] for d in out] == list(range(0, 25, 2))
    assert stats[1].tally.dropped == {"odd": 12}
