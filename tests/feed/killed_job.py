"""A training job's data side as one process of one rank: reads steps, writes what it got and its state, and is killed.

Run as: killed_job.py FOLDER LEG STEPS KILL, with RANK, WORLD_SIZE, ACCUMULATION and WORKERS in the environment. It goes
on from FOLDER/state.json where there is one, and rank 0 writes the state after its last step to FOLDER/state-LEG.json.
"""

import json
import os
import signal
import sys
import time
from itertools import islice
from pathlib import Path

import numpy as np

import thalweg as tw


def feed():
    def part(name, n):
        return tw.from_dataset(
            [{"input_ids": np.full(1 + i * 7 % 11, i, np.int32), "id": f"{name}{i}"} for i in range(n)], id="id"
        )

    mixed = tw.mix({"a": part("a", 40), "b": part("b", 25)}, weights={"a": 2, "b": 1}, on_exhausted="stop_all")
    return mixed.shuffle(3).pack(16, overlong="drop").batch(1)


def main():
    folder, leg, steps, kill = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4] == "kill"
    accumulation, rank = int(os.environ["ACCUMULATION"]), int(os.environ["RANK"])
    loader = tw.Loader(
        feed(), epochs=None, gradient_accumulation_steps=accumulation, workers=int(os.environ["WORKERS"]),
        return_tensors="np", ledger=folder / "ledger",
    )  # fmt: skip
    if (folder / "state.json").exists():
        loader.load_state_dict(json.loads((folder / "state.json").read_text()))
    out = {"steps": [], "before": loader.state_dict()}
    for batch in islice(loader, steps * accumulation):
        out["steps"].append([batch.info.epoch, batch.info.step, batch.info.micro, batch.info.ids])
    out["after"] = loader.state_dict()
    (folder / f"leg{leg}-{rank}.json").write_text(json.dumps(out))
    peers = [folder / f"leg{leg}-{r}.json" for r in range(int(os.environ["WORLD_SIZE"]))]
    while not all(peer.exists() for peer in peers):  # as a collective would: nobody is ahead of a rank that starts late
        time.sleep(0.01)
    if kill:
        os.kill(os.getpid(), signal.SIGKILL)
    loader.close()


if __name__ == "__main__":
    main()
