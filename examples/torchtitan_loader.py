"""torchtitan: its trainer builds the loader from a config and keeps the place in its own checkpoint; here, by hand."""

import numpy as np

import thalweg as tw

SEQ_LEN = 128
rng = np.random.default_rng(0)
rows = [{"input_ids": rng.integers(3, 97, rng.integers(5, 60)).astype(np.int32), "id": f"d{i}"} for i in range(300)]
feed = tw.from_dataset(rows, id="id").shuffle().pack(SEQ_LEN, overlong="drop")  # rows as long as the job's seq_len
config = tw.bind.torchtitan.FeedDataLoader.Config(feed=feed)  # what a job's config has as `dataloader`


def build(rank):
    """Build the loader as the trainer does, for one of two data-parallel ranks."""
    return config.build(dp_world_size=2, dp_rank=rank, tokenizer=None, seq_len=SEQ_LEN, local_batch_size=2)


def take(loader, count):
    """Give the ids of the next batches; the loader goes on without end."""
    batches = iter(loader)
    found = [next(batches) for _ in range(count)]
    assert all(set(inputs) == {"input", "positions"} for inputs, _ in found)
    assert all(labels.shape == (2, SEQ_LEN) for _, labels in found)  # shifted: labels[i] follows input[i]
    return [inputs["input"].tolist() for inputs, _ in found]


for rank in range(2):
    whole = take(build(rank), 9)
    first = build(rank)
    seen = take(first, 4)
    again = build(rank)
    again.load_state_dict(first.state_dict())
    rest = take(again, 5)
    print(f"rank {rank}: 4 batches, a break and 5 batches, as at one go")
    assert seen + rest == whole
