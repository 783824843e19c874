"""A stream of Hugging Face datasets, encoded on the way, saved in the middle and continued on two ranks."""

import inspect
import itertools
import json
import textwrap

from datasets import load_dataset

import thalweg as tw
from thalweg.encode import TextEncoder, qwen_tokenizer

# Local files stand for a dataset of the hub: load_dataset(name, split="train", streaming=True).
for number, module in enumerate((json, textwrap, inspect, itertools)):
    with open(f"part-{number}.jsonl", "w", encoding="utf-8") as file:
        for name, value in sorted(vars(module).items()):
            if text := inspect.getdoc(value):
                file.write(json.dumps({"id": f"{module.__name__}.{name}", "text": f"{name}\n{text}"}) + "\n")

encoder = TextEncoder(qwen_tokenizer())


def feed():
    """Give the same stream at each start: its sub-streams are the four files, so 1, 2 or 4 ranks may continue."""
    files = [f"part-{n}.jsonl" for n in range(4)]
    stream = load_dataset("json", data_files=files, split="train", streaming=True)
    feed = tw.from_stream(stream, shards=4).shuffle(buffer_size=50).map(encoder, batched=64)
    return feed.pack(256, policy="fill", overlong="split").batch(1)


print(feed())  # and why it is a stream
first = tw.Loader(feed(), max_steps=10)
head = [row for batch in first for row in batch.info.ids]
state = first.state_dict()  # a key for each sub-stream; the source's own place is in it
first.close()


def rest(**place):
    """Read on from the state."""
    loader = tw.Loader(feed(), **place)
    loader.load_state_dict(state)
    return [row for batch in loader for row in batch.info.ids]


alone = rest()
ranks = [rest(topology=tw.Topology(rank=r, world=2)) for r in range(2)]
print(f"{len(head)} rows, then {len(alone)} on one rank or {[len(r) for r in ranks]} on two, two files each")
steps = min(map(len, ranks))
assert steps > 0
assert all(row in alone for rank in ranks for row in rank)
assert not [row for row in head if row in alone]
