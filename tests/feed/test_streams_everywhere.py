"""Streams under the public oracle: restored from every position, whatever they map, expand, shuffle and pack."""

import ast
from pathlib import Path

import numpy as np
import pytest

import thalweg as tw
from thalweg.feed.node import RunOptions
from thalweg.feed.stream import StreamNode
from thalweg.feed.streamchain import build
from thalweg.testing import assert_resumes_everywhere


def rows(n=37):
    lengths = np.random.default_rng(0).integers(1, 20, n).tolist()
    for i, k in enumerate(lengths):
        yield {"input_ids": np.full(k, i, np.int32), "id": f"r{i}"}


def stream(**words):
    return tw.from_stream(rows, **words)


def odd(sample):
    return int(sample["input_ids"][0]) % 3 != 0


def expand(sample):
    return [sample, {**sample, "input_ids": sample["input_ids"] + 1000}][: int(sample["input_ids"][0]) % 3]


def plus(sample):
    return {"input_ids": sample["input_ids"] + 1}


def one_by_one(sample):
    yield from expand(sample)


def several(columns):
    return {"input_ids": [ids for ids in columns["input_ids"] if len(ids) % 4 for _ in range(len(ids) % 3)]}


def fragile(sample):
    if int(sample["input_ids"][0]) % 5 == 2:
        raise ValueError("two")
    return plus(sample)


def drawn(sample, info):
    return {"input_ids": sample["input_ids"] + int(info.rng.integers(1000))}


FEEDS = {
    "as it is": lambda: stream().batch(2),
    "two shards": lambda: stream(shards=2).batch(2),
    "window": lambda: stream().shuffle(buffer_size=5).batch(2),
    "mapped": lambda: stream().map(plus).batch(2),
    "threads": lambda: stream().map(plus, mode="threads", workers=3).batch(2),
    "filtered": lambda: stream().filter(odd).batch(2),
    "expanded": lambda: stream().map(expand).batch(2),
    "one by one": lambda: stream().map(one_by_one, mode="threads", workers=2).batch(2),
    "batched": lambda: stream(shards=2).map(several, batched=4, remove_columns="all").batch(2),
    "bad ones left out": lambda: (
        stream().map(fragile, mode="threads", workers=2, on_error="skip", max_bad=0.9).batch(2)
    ),
    "drawn at random": lambda: stream(shards=2).map(drawn, with_info=True, mode="threads", workers=2).batch(2),
    "a part": lambda: stream(shards=3).skip(3).take(20).batch(2),
    "a side of a split": lambda: stream().split({"train": 0.6, "val": 0.4})["train"].batch(2),
    "concat_split": lambda: stream().pack(32, policy="concat_split").batch(1),
    "concat_split of documents longer than rows": lambda: stream().pack(7, policy="concat_split").batch(2),
    "a window of documents": lambda: stream().pack(32, policy="window_5", overlong="truncate").batch(1),
    "two windows": lambda: stream(shards=2).shuffle(buffer_size=3).map(expand).shuffle(buffer_size=4).batch(2),
    "packed": lambda: stream().pack(32, policy="fill", overlong="split").batch(1),
    "rows mapped": lambda: (
        stream().pack(32, policy="fill", overlong="split").map(lambda row: {"labels": row["labels"]}).batch(1)
    ),
    "next fit": lambda: stream().pack(32, policy="next_fit", overlong="drop").batch(1),
    "all of it": lambda: (
        stream(shards=3)
        .shuffle(buffer_size=4)
        .filter(odd)
        .map(expand, mode="threads", workers=2)
        .pack(40, policy="fill", overlong="split")
        .batch(2)
    ),
    "a file a sub-stream": lambda: tw.from_stream(lambda shard, shards: rows(9 + shard), shards=2).batch(2),
    "mixed": lambda: tw.mix({"a": stream(), "b": tw.from_stream(list(rows(11)))}, weights={"a": 2, "b": 1}).batch(2),
    "one after the other": lambda: tw.concat({"a": stream(), "b": tw.from_stream(list(rows(11)))}).batch(2),
    "planned data behind a map": lambda: (
        tw.from_dataset(list(rows()), id="id").map(plus).pack(32, overlong="drop").batch(1)
    ),
}


def node_classes():
    """Give the nodes of streams that there are: public classes of the feed that keep a token and start from one."""
    found = {}
    for path in sorted(Path(tw.__file__).with_name("feed").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not any("Protocol" in ast.unparse(base) for base in node.bases):
                methods = {f.name for f in node.body if isinstance(f, ast.FunctionDef)}
                if methods >= {"first", "begin_of", "restore", "__iter__"}:
                    found[node.name] = path.name
    return found


def nodes_of(node, found):
    """Name the classes of a node and of all that it holds."""
    if type(node).__module__.startswith("thalweg.feed") and type(node).__name__ not in found:
        found.add(type(node).__name__)
    held = vars(node).values() if hasattr(node, "__dict__") else ()
    for value in held:
        for one in value if isinstance(value, list | tuple) else [value]:
            if hasattr(one, "begin_of"):
                nodes_of(one, found)


def test_every_node_of_a_stream_is_among_the_feeds_that_are_restored_from_every_position():
    found = set()
    for make in FEEDS.values():
        nodes_of(build(make(), RunOptions(), None).node, found)
    every = node_classes()
    assert len(every) >= 8
    assert {name: path for name, path in every.items() if name not in found} == {}


# A51 C48 K26 K28 K30
@pytest.mark.parametrize("name", FEEDS)
@pytest.mark.parametrize("words", [{}, {"epochs": None, "max_steps": 20}])
def test_a_stream_goes_on_from_every_position(name, words):
    assert_resumes_everywhere(lambda: tw.Loader(FEEDS[name](), return_tensors="np", **words), limit=40)


@pytest.mark.parametrize("name", ["as it is", "all of it"])
def test_the_node_below_it_too(name):
    assert len(assert_resumes_everywhere(lambda: StreamNode(FEEDS[name](), RunOptions()))) > 3
