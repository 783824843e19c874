"""What each source of a stream handed over: exact at every step, wherever samples wait, and after any resume."""

import json
from itertools import islice

import pytest

import thalweg as tw
from thalweg.feed.loader import FeedLoader
from thalweg.feed.sourceplaces import places_of_sources, together
from thalweg.feed.streamstate import merge_states


def part(name, n):
    def rows(epoch):
        return ({"input_ids": [epoch + 1] * (1 + k % 5), "n": k, "of": name, "in": epoch} for k in range(n))

    return tw.from_stream(rows, shards=4)


def odd(sample):
    return sample["n"] % 3 != 1


def twice(sample):
    return [sample] * (1 + sample["n"] % 2)


def mixed():
    return tw.mix({"a": part("a", 23), "b": part("b", 60)}, weights={"a": 2, "b": 1}, on_exhausted="stop_all")


FEEDS = {
    "mix": mixed,
    "behind a window": lambda: mixed().shuffle(buffer_size=7),
    "filtered and expanded behind it": lambda: (
        mixed().filter(odd).map(twice, mode="threads", workers=2).shuffle(buffer_size=3)
    ),
    "called in groups": lambda: mixed().map(lambda columns: columns, batched=3),
    "a concat in a mix": lambda: tw.mix(
        {"x": tw.concat({"a": part("x/a", 19), "b": part("x/b", 7).repeat(2)}), "c": part("c", 21)},
        weights={"x": 3, "c": 1},
    ).shuffle(buffer_size=3),
    "one after the other": lambda: tw.concat({"a": part("a", 30).repeat(2), "b": part("b", 17)}).shuffle(buffer_size=5),
}


def loader(feed, rank=0, world=1, **more):
    given = {"epochs": 3, "workers": 0, "tail": "carry", **more}
    return FeedLoader(feed.batch(2, collate="raw"), topology=tw.Topology(rank, world), **given)


def recount(batches):
    """Of each source that gave a sample, the newest epoch of its own of which one came, and how many of that did."""
    out = {}
    for batch in batches:
        for sample in batch["samples"]:
            epoch, n = out.get(sample["of"], (0, 0))
            if sample["in"] >= epoch:
                out[sample["of"]] = (sample["in"], 1 + n * (sample["in"] == epoch))
    return out


def told(*loaders):
    found = together([places_of_sources(x.node) for x in loaders], planned=False)
    assert len(found) >= 2
    return {name: place for name, place in found.items() if place != (0, 0)}


@pytest.mark.parametrize("name", FEEDS)
def test_the_places_of_sources_are_those_of_the_samples_that_came_at_every_step(name):
    x, seen = loader(FEEDS[name]()), []
    assert told(x) == {}
    for batch in x:
        seen.append(batch)
        assert told(x) == recount(seen)
    assert max(epoch for epoch, _ in told(x).values()) >= 2


def test_a_look_moves_no_place():
    x = loader(mixed())
    batch = next(iter(x))
    x.peek()
    assert told(x) == recount([batch])


@pytest.mark.parametrize("name", FEEDS)
@pytest.mark.parametrize(("before", "after"), [(4, 1), (1, 2), (2, 4)])
def test_places_go_on_from_a_state_at_another_number_of_ranks(name, before, after):
    ranks = [loader(FEEDS[name](), r, before) for r in range(before)]
    seen = [b for x in ranks for b in islice(x, 12)]
    states = [json.loads(json.dumps(x.state_dict())) for x in ranks]
    assert told(*ranks) == recount(seen)
    again = [loader(FEEDS[name](), r, after) for r in range(after)]
    for x in again:
        x.load_state_dict(merge_states(states))
    assert told(*again) == told(*ranks)
    seen += [b for x in again for b in islice(x, 9)]
    assert told(*again) == recount(seen)


@pytest.mark.parametrize("name", FEEDS)
def test_an_epoch_that_is_begun_again_counts_from_where_it_began(name):
    x = loader(FEEDS[name](), epochs=1, tail="drop")
    first = list(x)
    for _ in range(2):  # broken off, and begun again
        more = list(islice(x, 5))
        assert told(x) == recount([*first, *more])
    y = loader(FEEDS[name](), epochs=1, tail="drop")
    y.load_state_dict(x.state_dict())
    assert told(y) == told(x)
    next(iter(y))  # goes on
    again = list(islice(y, 3))
    assert told(y) == recount([*first, *again])


def test_a_document_that_rows_share_out_counts_once():
    x, came = loader(mixed().pack(4, policy="concat_split")), []
    for batch in islice(x, 8):
        for names, ids in zip(batch.info.sources, batch.info.ids, strict=True):
            came += zip(names, ids, strict=True)
    whole = set(came)
    assert len(whole) < len(came)
    assert told(x) == {own: (0, sum(name == own for name, _ in whole)) for own in "ab"}


def test_the_state_holds_a_few_numbers_a_source_and_none_of_one_source():
    x = loader(mixed())
    list(islice(x, 5))
    few = {k: json.loads(v) for k, v in x.state_dict().items() if k.startswith("sub-stream")}
    assert all(len(json.dumps(v["given"])) < 60 for v in few.values())
    alone = loader(part("a", 40))
    list(islice(alone, 5))
    assert '"given"' not in str(alone.state_dict())
    assert places_of_sources(alone.node) == {}
