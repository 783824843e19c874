"""One rank of a gloo job that reads streams. Run as stream_rank_job.py STORE RANK WORLD; prints a line a case."""

import json
import sys

import torch.distributed as dist

import thalweg as tw

N = 40


def keep(sample):
    """Rank 1 of 2 keeps every second of its samples."""
    n = sample["n"]
    return sample if n % 2 == 0 or n % 4 == 1 else None


def fail(sample):
    if sample["n"] == 13:
        raise LookupError("thirteen")
    return sample


def none_of_rank_one(sample):
    return None if sample["n"] % 2 else sample


def read(case, store, fn, *, times=1, **words):
    stream = tw.from_stream([{"n": i} for i in range(N)]).map(fn, mode="threads", workers=2).batch(2, collate="raw")
    loader = tw.Loader(stream, return_tensors="np", ledger=f"{store}.{case}", stall_after=60, **words)
    told, error = [], None
    try:
        for _ in range(times):
            told.append([[s["n"] for s in b["samples"]] if "samples" in b else [] for b in loader])
    except Exception as e:
        error = f"{type(e).__name__}: {e}"
    print(json.dumps({"case": case, "batches": told, "error": error, "step": loader.step}), flush=True)
    loader.close()


def main():
    store, rank, world = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    read("first", store, keep, times=2)
    read("all", store, keep, until="all", prefetch=5)
    read("failed", store, fail)
    read("empty", store, none_of_rank_one, epochs=None)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
