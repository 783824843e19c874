"""Packed rows: the arrays of a batch beside the collator of transformers, and equal work for all ranks.

Rows of the lognormal set; tokens, labels, position ids and segment borders of 262,144 places a call.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from harness import Case, Side, Work, main
from packing_peers import lengths_of, prepare, sizes


def packed_rows(folder: Path, size: Mapping[str, Any]) -> tuple[Any, list[Any], Any]:
    """Give the rows of a plan in a random order: tokens of all documents, documents of each row."""
    from thalweg.plan import pack

    lengths = np.array(lengths_of(folder)).astype(np.int64)
    made = pack.plan(lengths, size["capacity"], policy="fill").rows
    rows = made.take(np.random.default_rng(0).permutation(len(made)))
    ends = np.append(0, np.cumsum(lengths[rows.order]))
    return np.random.default_rng(1).integers(0, 150_000, ends[-1]).astype(np.int32), ends, rows.offsets


def laid_out(dtype: str) -> Any:
    def start(folder: Path, size: Mapping[str, Any]) -> Work:
        from thalweg.core.allocator import keep_freed_memory
        from thalweg.core.sample import Ragged
        from thalweg.plan.rows import lay_out

        keep_freed_memory()  # as the loader does

        flat, ends, offsets = packed_rows(folder, size)
        groups = []
        for first in range(0, len(offsets) - 1, size["rows"]):
            part = offsets[first : first + size["rows"] + 1]
            inside = ends[part[0] : part[-1] + 1]
            groups.append((Ragged(flat[inside[0] : inside[-1]], inside - inside[0]), part - part[0]))
        kind = np.dtype(dtype)
        check = [0, 0]

        def run() -> int:
            tokens = check[0] = check[1] = 0
            for documents, rows in groups:
                made = lay_out(documents, rows, capacity=size["capacity"], dtype=kind)
                tokens += made.num_tokens
                check[1] += made.num_label_tokens
            check[0] = tokens
            return tokens

        return Work(run, lambda: check)

    return start


def collator(folder: Path, size: Mapping[str, Any]) -> Work:
    """The collator of transformers for flat rows, one row at a time, as numpy arrays."""
    from transformers import DataCollatorWithFlattening

    flat, ends, offsets = packed_rows(folder, size)
    collate = DataCollatorWithFlattening(return_tensors="np", return_flash_attn_kwargs=True)
    keep = min(len(offsets) - 1, size["collated"])
    rows = [
        [{"input_ids": flat[ends[d] : ends[d + 1]].tolist()} for d in range(offsets[r], offsets[r + 1])]
        for r in range(keep)
    ]
    return Work(lambda: sum(collate(row)["input_ids"].size for row in rows))


def balanced(folder: Path, size: Mapping[str, Any]) -> Work:
    from thalweg.plan import balance, pack

    lengths = np.array(lengths_of(folder))
    made = pack.plan(lengths, size["capacity"]).rows
    rows = made.take(np.random.default_rng(0).permutation(len(made)))
    cost = balance.Cost(24_576, 1).rows(rows.piece_lengths(lengths), rows.offsets)
    window = balance.WINDOW_RUNS * size["ranks"]

    def run() -> dict[str, float]:
        ordered = cost[balance.order_rows(cost, 0, window, size["ranks"], 0)]
        return {
            "units": len(cost),
            "max/mean in random order": float(balance.stragglers(cost, size["ranks"]).mean()),
            "max/mean balanced": float(balance.stragglers(ordered, size["ranks"]).mean()),
        }

    return Work(run)


CASES = [
    *(
        Case(
            f"arrays, rows of {capacity:,}",
            "tokens",
            sides={
                "thalweg int32": Side(laid_out("int32")),
                "thalweg int64": Side(laid_out("int64")),
                "transformers collator": Side(collator),
            },
            sizes=sizes("chat", capacity, 40_000, rows=262_144 // capacity, collated=50),
            prepare=prepare,
            rounds=5,
        )
        for capacity in (4096, 8192)
    ),
    Case(
        "balance, 131,072 tokens, 64 ranks",
        "rows",
        sides={"thalweg": Side(balanced)},
        sizes={
            "full": {"kind": "long", "capacity": 131_072, "documents": 400_000, "ranks": 64},
            "smoke": {"kind": "long", "capacity": 131_072, "documents": 4000, "ranks": 4},
        },
        prepare=prepare,
        warmup=0,
        rounds=1,
    ),
]

if __name__ == "__main__":
    main(__file__, CASES)
