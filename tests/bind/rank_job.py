"""One rank of a gloo job: makes a loader and reads. Run as rank_job.py STORE RANK WORLD WHAT."""

import json
import sys

import numpy as np
import torch.distributed as dist

import thalweg as tw
from thalweg.core.errors import AgreementError


def feed(n=40):
    rows = [{"input_ids": np.full(1 + i % 5, i, np.int32), "id": f"r{i}"} for i in range(n)]
    return tw.from_dataset(rows, id="id").shuffle().pack(16, overlong="drop").batch(1)


def main():
    store, rank, world, what = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    seed = rank if what == "seed" else 0
    place = {"topology": tw.Topology(rank, world)} if what == "data" else {}  # said, or found
    loader = tw.Loader(feed(41 if what == "data" and rank else 40), seed=seed, ledger=f"{store}.ledger", **place)
    if what == "place" and rank:
        loader.set_epoch(3)
    try:
        rows = [row for batch in loader for row in batch.info.ids]
        print(json.dumps({"rows": rows, "rank": loader.topology.dp_rank, "leg": loader._ledger.leg}))
    except AgreementError as error:
        print(json.dumps({"error": str(error)}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
