"""Packing: plans and streams beside the packers of TRL, LLaMA-Factory, axolotl, LMMS and Megatron.

Three length sets: "chat" (lognormal, mean 299, at most 4,096) in rows of 4,096, the same in rows of 32,768, and "media"
(80% of 50 to 400, 20% of 1,500 to 6,000) in rows of 8,192.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from harness import Case, Side, Work, main
from packing_peers import (
    ARROW,
    NUMPY,
    SETS,
    axolotl,
    figures,
    lengths_of,
    llamafactory,
    lmms,
    lmms_online,
    megatron,
    peers,
    prepare,
    sizes,
    trl,
)


def ours(policy: str) -> Any:
    def start(folder: Path, size: Mapping[str, Any]) -> Work:
        from thalweg.plan import pack

        lengths = np.array(lengths_of(folder))

        def run() -> dict[str, float]:
            return figures(len(pack.plan(lengths, size["capacity"], policy=policy).rows), lengths, size["capacity"])

        return Work(run)

    return start


def in_blocks(folder: Path, size: Mapping[str, Any]) -> Work:
    from thalweg.plan import pack

    lengths = lengths_of(folder)

    def run() -> dict[str, float]:
        plans = pack.plan_blocks(lengths, size["capacity"], block=size["block"])
        return figures(sum(len(p.rows) for p in plans), lengths, size["capacity"])

    return Work(run)


def argsort(folder: Path, _size: Mapping[str, Any]) -> Work:
    lengths = np.array(lengths_of(folder)).astype(np.int64)
    return Work(lambda: len(np.argsort(lengths, kind="stable")))


def streaming(policy: str) -> Any:
    def start(folder: Path, size: Mapping[str, Any]) -> Work:
        from thalweg.plan.pack_stream import packer

        lengths = np.array(lengths_of(folder))

        def run() -> dict[str, float]:
            made, rows = packer(policy, size["capacity"]), 0
            lag, newest = 0, 0
            for i, length in enumerate(lengths.tolist()):
                for row in made.push(length, i):
                    rows += 1
                    newest = max(newest, row.keys[-1])
                    lag = max(lag, newest - row.keys[0])
            rows += len(made.flush())
            return figures(rows, lengths, size["capacity"]) | {"lag, documents": lag}

        return Work(run)

    return start


def many(policy: str) -> Any:
    def start(folder: Path, size: Mapping[str, Any]) -> Work:
        from thalweg.plan.pack_stream import packer

        lengths = np.array(lengths_of(folder))

        def run() -> dict[str, float]:
            made, rows = packer(policy, size["capacity"]), 0
            for first in range(0, len(lengths), 1024):
                part = lengths[first : first + 1024].tolist()
                rows += len(made.extend(part, range(first, first + len(part))))
            return figures(rows + len(made.flush()), lengths, size["capacity"])

        return Work(run)

    return start


CASES = [
    *(
        Case(
            f"plan, {kind}, rows of {capacity:,}",
            "documents",
            sides={"thalweg best_fit": Side(ours("best_fit")), "numpy argsort": Side(argsort)},
            sizes=sizes(kind, capacity, 1_000_000),
            prepare=prepare,
        )
        for kind, capacity, _ in SETS
    ),
    *(
        Case(
            f"plan beside peers, {kind}, rows of {capacity:,}",
            "documents",
            sides=peers(
                {"thalweg best_fit": Side(ours("best_fit")), "thalweg fill": Side(ours("fill"))},
                llamafactory_all=Side(llamafactory(None), NUMPY),
                llamafactory_1000=Side(llamafactory(1000), NUMPY),
                axolotl=Side(axolotl, (*NUMPY, "numba==0.68.0")),
                lmms_first_fit=Side(lmms("_pack_by_first_fit"), NUMPY),
                lmms_window_100=Side(lmms("_pack_by_window", 100), NUMPY),
                megatron=Side(megatron, NUMPY),
            ),
            sizes=sizes(kind, capacity, documents),
            prepare=prepare,
            warmup=0,
            rounds=3,
        )
        for kind, capacity, documents in SETS
    ),
    *(
        Case(
            f"plan beside TRL, {kind}, rows of {capacity:,}",
            "documents",
            sides=peers(
                {"thalweg best_fit": Side(ours("best_fit"))},
                trl_all=Side(trl(None), ARROW),
                trl_1000=Side(trl(1000), ARROW),
            ),
            sizes=sizes(kind, capacity, 200_000),
            prepare=prepare,
            warmup=0,
            rounds=3,
        )
        for kind, capacity, _ in SETS
    ),
    Case(
        "plan, 10 million",
        "documents",
        sides={"thalweg best_fit": Side(ours("best_fit")), "numpy argsort": Side(argsort)},
        sizes=sizes("chat", 4096, 10_000_000),
        prepare=prepare,
        rounds=3,
    ),
    Case(
        "plan, 100 million in blocks",
        "documents",
        sides={"thalweg best_fit": Side(in_blocks)},
        sizes=sizes("chat", 4096, 100_000_000, block=10_000_000),
        prepare=prepare,
        warmup=0,
        rounds=1,
    ),
    *(
        Case(
            f"stream, {kind}, rows of {capacity:,}",
            "documents",
            sides=peers(
                {
                    "thalweg fill": Side(many("fill")),
                    "thalweg fill one by one": Side(streaming("fill")),
                    "thalweg next_fit": Side(many("next_fit")),
                },
                lmms_first_fit_stream=Side(lmms_online("FirstFitPacking"), NUMPY),
                lmms_best_fit_stream=Side(lmms_online("BestFitPacking"), NUMPY),
            ),
            sizes=sizes(kind, capacity, 200_000),
            prepare=prepare,
            rounds=3,
        )
        for kind, capacity, _ in SETS
    ),
]

if __name__ == "__main__":
    main(__file__, CASES)
