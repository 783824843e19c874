"""How many tokens of a step are in the loss over all ranks: known from the table wherever it can be, else said."""

import numpy as np
import pytest

import thalweg as tw
from thalweg.core.errors import SampleError
from thalweg.core.topology import Topology
from thalweg.feed.loader import FeedLoader


@pytest.fixture(scope="module")
def chats(tmp_path_factory):
    """Records whose first tokens are a prompt; some are all answer, some all prompt."""
    path, draw = str(tmp_path_factory.mktemp("chats") / "set"), np.random.default_rng(4)
    with tw.create_records(path) as writer:
        for i in range(160):
            n = int(draw.integers(2, 40))
            first = (0, n, int(draw.integers(0, n)))[i % 3]
            writer.write({"input_ids": np.arange(n, dtype=np.int32), "loss_spans": np.array([[first, n]], np.int32)})
    return tw.from_records(path)


def ranks(feed, world=3, **more):
    return [FeedLoader(feed, topology=Topology(rank=r, world=world), **more) for r in range(world)]


def totals(feed):
    """Each step's own sum over ranks and micro-batches, and what its batches say."""
    made = [list(one) for one in ranks(feed, gradient_accumulation_steps=2)]
    steps = [[b for part in made for b in part[s : s + 2]] for s in range(0, len(made[0]), 2)]
    assert steps
    return [sum(b.info.num_label_tokens for b in step) for step in steps], [
        {b.info.step_label_tokens for b in step} for step in steps
    ]


def keep(sample):
    return {"size": len(sample["input_ids"])}


def first_half(sample):
    n = len(sample["input_ids"]) // 2 + 1
    return {"input_ids": sample["input_ids"][:n], "loss_spans": np.array([[min(2, n), n]], np.int32)}


STAGES = {
    "cut anywhere": lambda feed: feed.shuffle().pack(24, policy="concat_split").batch(2),
    "cut at the end": lambda feed: feed.shuffle().pack(16, overlong="truncate").batch(1),
    "two row lengths": lambda feed: feed.shuffle().pack((16, 48), overlong="truncate").batch(1),
    "cached lengths": lambda feed: (
        feed.map(first_half).cache(what="lengths").shuffle().pack(32, overlong="drop").batch(1)
    ),
    "cached samples": lambda feed: feed.map(first_half).cache().shuffle().pack(16, policy="concat_split").batch(1),
    "two sources, one without spans": lambda feed: tw.mix(
        {"chat": feed, "text": tw.from_dataset([{"input_ids": list(range(n % 9 + 2))} for n in range(80)])}
    ).map(keep, output_columns="size", length="same").shuffle().pack(24, overlong="truncate").batch(1, collate="raw"),
}  # fmt: skip


@pytest.mark.parametrize("name", STAGES)
def test_the_tokens_in_the_loss_of_a_step_are_known_before_it_is_read(chats, name, tmp_path, monkeypatch):
    monkeypatch.setenv("THALWEG_CACHE", str(tmp_path))
    feed = STAGES[name](chats)
    sums, told = totals(feed)
    assert told == [{n} for n in sums]
    assert len(set(sums)) > 1
    assert "step_label_tokens" not in str(feed)


def test_long_plain_text_that_is_split_is_counted_from_the_plan():
    text = tw.from_dataset([{"input_ids": list(range(n))} for n in range(1, 90)])
    marked = tw.from_dataset([{"input_ids": list(range(n)), "labels": list(range(n))} for n in range(1, 90)])
    for feed in (text, marked):
        sums, told = totals(feed.shuffle().pack(32, overlong="split").batch(1))
        assert told == [{n} for n in sums]


def test_a_declared_map_leaves_the_count_known_and_is_held_to_its_declaration(chats):  # E25
    tagged = chats.map(lambda _: {"size": 1}, output_columns="size")
    collated = tagged.batch(2, collate="raw")
    known = {b.info.step_label_tokens for one in ranks(collated) for b in one}
    assert None not in known
    sneaky = chats.map(lambda s: {"size": 1, "labels": s["input_ids"]}, output_columns="size").batch(2, collate="raw")
    with pytest.raises(SampleError, match=r"'labels', which output_columns does not name"):
        next(iter(ranks(sneaky)[0]))


@pytest.mark.parametrize(
    ("stage", "word"),
    [
        (lambda feed: feed.map(first_half), "may change them"),
        (lambda feed: feed.map(keep, output_columns="size", on_error="skip"), "may change them"),
        (lambda feed: feed.map(keep, output_columns="size", remove_columns="all"), "may change them"),
        (lambda feed: feed.map(first_half).cache(what="lengths").pack(8, overlong="truncate"), "counts alone are kept"),
    ],
)
def test_where_it_cannot_be_known_the_feed_and_the_loader_say_why_and_what_helps(chats, stage, word):
    feed = stage(chats).batch(1)
    said = str(feed).splitlines()[-1]
    assert "info.step_label_tokens is None on several ranks" in said
    assert word in said
    assert ".cache()" in said
    assert word not in str(chats.batch(1))
    one = ranks(feed)[0]
    assert word in one.stats()["step_label_tokens"]


def test_on_one_rank_the_tokens_in_the_loss_are_counted_where_the_table_does_not_know_them(chats):
    one = ranks(chats.map(first_half).batch(3), world=1, gradient_accumulation_steps=2)[0]
    made = list(one)
    for a, b in zip(made[::2], made[1::2], strict=True):
        total = a.info.num_label_tokens + b.info.num_label_tokens
        assert {a.info.step_label_tokens, b.info.step_label_tokens} == {total}


def test_samples_that_mark_their_loss_and_samples_that_do_not_share_a_batch():
    rows = [
        {"input_ids": [1, 2, 3, 4], "loss_spans": [[2, 4]]},
        {"input_ids": [5, 6, 7]},
        {"input_ids": [8, 9, 10], "labels": [-100, -100, 10]},
    ]
    for order in ([0, 1], [1, 0], [0, 1, 2], [2, 1, 0]):
        picked = [rows[i] for i in order]
        feed = tw.from_dataset(picked).map(lambda s: {"n": 1}, output_columns="n").pack(16, overlong="error")
        row = next(iter(ranks(feed.batch(1, collate="raw"), world=1)[0]))["samples"][0]
        wanted = {1: [-100, -100, 3, 4], 5: [-100, 6, 7], 8: [-100, -100, 10]}
        starts = np.flatnonzero(row["position_ids"] == 0)
        got = dict(zip(row["input_ids"][starts].tolist(), np.split(row["labels"], starts[1:]), strict=True))
        assert {k: v.tolist() for k, v in got.items()} == {k: wanted[k] for k in got}
        assert len(got) == len(order)
