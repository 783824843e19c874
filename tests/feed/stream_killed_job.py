"""Reads a stream and saves its place now and then, until it is killed: stream_killed_job.py FOLDER, a byte a step."""

import json
import os
import sys
from pathlib import Path

import numpy as np

import thalweg as tw


def expand(sample):
    n = int(sample["input_ids"][0])
    return [{"input_ids": np.full(1 + (n + k) % 6, n, np.int32)} for k in range(n % 3)]


def feed():
    rows = [{"input_ids": np.full(2, i, np.int32)} for i in range(400)]
    stream = tw.from_stream(rows, shards=2).shuffle(5, buffer_size=16)
    return stream.map(expand, mode="processes", workers=2).pack(24, policy="fill", overlong="drop").batch(1)


def main():
    folder = Path(sys.argv[1])
    place = folder / "state.json"
    loader = tw.Loader(feed(), return_tensors="np", tail="pad", ledger=str(folder / "ledger"))
    if place.exists():
        loader.load_state_dict(json.loads(place.read_text()))
    for batch in loader:
        sys.stdin.read(1)  # a byte allows a step; at the end of the input all go
        print(json.dumps([batch.info.step, batch["input_ids"].tolist(), batch.info.ids]), flush=True)
        if batch.info.step % 3 == 2:
            new = folder / "state.new"
            new.write_text(json.dumps(loader.state_dict()))
            os.replace(new, place)
    loader.close()
    print("done", flush=True)


if __name__ == "__main__":
    main()
