"""torchdata's StatefulDataLoader over a feed: its workers are ranks of the feed, and its state is the feed's place."""

import json

import numpy as np
from torchdata.stateful_dataloader import StatefulDataLoader

import thalweg as tw

rng = np.random.default_rng(0)
rows = [{"input_ids": rng.integers(3, 97, rng.integers(5, 60)).astype(np.int32), "id": f"d{i}"} for i in range(300)]
feed = tw.from_dataset(rows, id="id").shuffle().pack(128, overlong="drop").batch(2)


def loader():
    """Make the loader; the feed makes the batches, so `batch_size` is None."""
    return StatefulDataLoader(tw.bind.torch.IterableDataset(feed), batch_size=None, num_workers=2)


def tokens(batch):
    """Give the ids of a batch as a list, to compare."""
    return batch["input_ids"].tolist()


def main():
    """Read an epoch at one go, then in two parts with the state as JSON between them."""
    whole = [tokens(batch) for batch in loader()]
    first, seen = loader(), []
    for batch in first:
        seen.append(tokens(batch))
        if len(seen) == 7:
            break
    state = json.loads(json.dumps(first.state_dict()))
    second = loader()
    second.load_state_dict(state)
    rest = [tokens(batch) for batch in second]
    print(f"{len(seen)} batches before the break, {len(rest)} after")
    assert seen + rest == whole


if __name__ == "__main__":  # its workers start as new processes on some systems
    main()
