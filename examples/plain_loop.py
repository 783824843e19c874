"""Records, a packed feed and a loop that is broken off and continued on two ranks; numpy is all it needs."""

import tempfile
from pathlib import Path

import numpy as np

import thalweg as tw

# Data at rest: 500 documents of 5 to 200 tokens. A real job writes them with `thalweg.steps.RecordsWriter`.
path = Path(tempfile.mkdtemp()) / "records"
rng = np.random.default_rng(0)
with tw.create_records(path) as writer:
    for n in range(500):
        writer.write({"input_ids": rng.integers(1, 1000, rng.integers(5, 200)).astype(np.int32)}, id=f"doc-{n}")

# What the job reads, in which order. Nothing is read yet; printing it says what it is.
feed = tw.from_records(path).shuffle().pack(512).batch(2, pad_id=0)
print(feed)


def read(loader):
    """Give (step, ids of its rows) of all batches; a real loop would call `model(**batch)`."""
    return [(batch.info.step, batch.info.ids) for batch in loader]


# One rank reads the whole epoch in steps of 4 rows: 2 micro-batches of 2.
whole = read(tw.Loader(feed, gradient_accumulation_steps=2, return_tensors="np"))

# The same again, broken off after step 3 with the state of that place.
first = tw.Loader(feed, gradient_accumulation_steps=2, return_tensors="np")
seen = []
for batch in first:
    seen.append((batch.info.step, batch.info.ids))
    if batch.info.last and batch.info.step == 3:
        break
state = first.state_dict()  # a small dict of strings: JSON, torch.save, whatever the checkpoint is
first.close()

# Continued on two ranks with one micro-batch each: together they read what is left, in the same order.
ranks = []
for rank in range(2):
    loader = tw.Loader(feed, topology=tw.Topology(rank=rank, world=2), return_tensors="np")
    loader.load_state_dict(state)
    ranks.append(read(loader))
rest = [part for pair in zip(*ranks, strict=True) for part in pair]

print(f"{len(whole)} micro-batches: {len(seen)} before the break, {len(rest)} after")
assert seen + rest == whole
