"""Packing: plans, streams and the rows' arrays beside the packers of TRL, LLaMA-Factory, axolotl, LMMS and Megatron.

Three length sets: "chat" (lognormal, mean 299, at most 4,096) in rows of 4,096, the same in rows of 32,768, and "media"
(80% of 50 to 400, 20% of 1,500 to 6,000) in rows of 8,192. The peers' functions are taken unedited out of their wheels,
which are fetched without what else they depend on; Megatron's example packer out of a checkout named by
THALWEG_MEGATRON.
"""

import ast
import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from harness import HOME, Case, Side, Work, main

WHEELS = HOME / "wheels"
PEERS = {"trl": "1.16.0", "llamafactory": "0.9.5", "axolotl": "0.19.0", "lmms-engine": "0.1.4"}
MEGATRON = os.environ.get("THALWEG_MEGATRON")
SMOKE = "--smoke" in sys.argv
NUMPY = ("numpy==2.4.6",)


def draw(kind: str, n: int, seed: int = 0) -> Any:
    """Draw lengths of one of the sets, int32 (n,)."""
    rng = np.random.default_rng(seed)
    if kind == "chat":
        return np.clip(rng.lognormal(np.log(299) - 0.5, 1.0, n), 1, 4096).astype(np.int32)
    if kind == "media":
        short, long = rng.integers(50, 401, n), rng.integers(1500, 6001, n)
        return np.where(rng.random(n) < 0.8, short, long).astype(np.int32)
    return np.clip(rng.lognormal(np.log(4000) - 1.5**2 / 2, 1.5, n), 1, 131_072).astype(np.int32)


def prepare(folder: Path, size: Mapping[str, Any]) -> None:
    """Write the lengths, and fetch the peers' wheels."""
    n = size["documents"]
    if n <= 10_000_000:
        np.save(folder / "lengths.npy", draw(size["kind"], n))
    else:  # more than is drawn at a time: ten million, over and over, in a file that is mapped
        out = np.lib.format.open_memmap(folder / "lengths.npy", "w+", np.int32, (n,))
        for i, start in enumerate(range(0, n, 10_000_000)):
            out[start : start + 10_000_000] = draw(size["kind"], min(10_000_000, n - start), i)
        out.flush()
    if not SMOKE:
        for name, version in PEERS.items():
            if not wheel(name):
                command = [
                    sys.executable,
                    "-m",
                    "pip",
                    "download",
                    "-q",
                    "--no-deps",
                    "-d",
                    WHEELS,
                    f"{name}=={version}",
                ]
                subprocess.run(command, check=True)


def wheel(name: str) -> Path | None:
    found = sorted(WHEELS.glob(f"{name.replace('-', '_')}-{PEERS[name]}-*.whl"))
    return found[0] if found else None


def taken(source: str, names: list[str], scope: dict[str, Any]) -> dict[str, Any]:
    """Run the definitions of these names out of a module's source, unedited, with `scope` as its imports."""
    found = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in names
    ]
    exec(compile(ast.Module(found, []), "<peer>", "exec"), scope)  # their own code, which the benchmark runs as it is
    return scope


def out_of(name: str, path: str, names: list[str], scope: dict[str, Any]) -> dict[str, Any]:
    file = wheel(name)
    assert file is not None, f"the wheel of {name} is not there"
    return taken(zipfile.ZipFile(file).read(path).decode(), names, scope)


def lengths_of(folder: Path) -> Any:
    return np.load(folder / "lengths.npy", mmap_mode="r")


def figures(rows: int, lengths: Any, capacity: int) -> dict[str, float]:
    """Give the figures of a plan: rows, those above the lower bound, and the fill."""
    tokens = int(lengths.sum(dtype=np.int64))
    bound = -(-tokens // capacity)
    over = 100 * (rows / bound - 1)
    return {
        "units": len(lengths),
        "rows": rows,
        "rows over the bound, %": over,
        "fill, %": 100 * tokens / rows / capacity,
    }


# ---- whole lists
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


def trl(batch: int | None) -> Any:
    def start(folder: Path, size: Mapping[str, Any]) -> Work:
        from collections import defaultdict, deque
        from typing import Literal

        import pyarrow as pa
        import pyarrow.compute as pc

        scope: dict[str, Any] = {"pa": pa, "pc": pc, "np": np, "defaultdict": defaultdict, "deque": deque}
        names = ["_SegmentTree", "_pack_bfd", "_check_if_columns_can_be_packed"]
        pack = out_of("trl", "trl/data_utils.py", names, scope | {"Literal": Literal})["_pack_bfd"]
        lengths = np.array(lengths_of(folder))
        tables = []
        for first in range(0, len(lengths), batch or len(lengths)):
            part = lengths[first : first + (batch or len(lengths))]
            offsets = np.append(0, np.cumsum(part, dtype=np.int64))
            values = pa.array(np.zeros(offsets[-1], np.int8))  # a byte a token: the algorithm is measured, not the copy
            tables.append(pa.table({"input_ids": pa.LargeListArray.from_arrays(offsets, values)}))
        return Work(lambda: figures(sum(len(pack(t, size["capacity"])) for t in tables), lengths, size["capacity"]))

    return start


def llamafactory(batch: int | None) -> Any:
    def start(folder: Path, size: Mapping[str, Any]) -> Work:
        import bisect

        path = "llamafactory/data/processor/processor_utils.py"
        pack = out_of("llamafactory", path, ["search_for_fit", "greedy_knapsack"], {"bisect": bisect})[
            "greedy_knapsack"
        ]
        lengths = np.array(lengths_of(folder))

        def run() -> dict[str, float]:
            step, whole = batch or len(lengths), lengths.tolist()
            rows = sum(len(pack(whole[i : i + step], size["capacity"])) for i in range(0, len(whole), step))
            return figures(rows, lengths, size["capacity"])

        return Work(run)

    return start


def axolotl(folder: Path, size: Mapping[str, Any]) -> Work:
    import numba

    path = "axolotl/utils/samplers/multipack.py"
    pack = out_of("axolotl", path, ["pack_group"], {"numba": numba, "np": np})["pack_group"]
    lengths = np.array(lengths_of(folder)).astype(np.int64)
    pack(lengths[:64], 0, size["capacity"], 64, 200, True)  # compiled before it is measured

    def run() -> dict[str, float]:
        groups = (lengths[i : i + 100_000] for i in range(0, len(lengths), 100_000))
        rows = sum(len(pack(group, 0, size["capacity"], len(group), 200, True)) for group in groups)
        return figures(rows, lengths, size["capacity"])

    return Work(run)


class _Quiet:
    def info(self, *_: Any) -> None:
        pass


def lmms(method: str, *more: Any) -> Any:
    def start(folder: Path, size: Mapping[str, Any]) -> Work:
        path = "lmms_engine/datasets/naive/multimodal_dataset.py"
        pack = out_of("lmms-engine", path, [method], {"List": list, "logger": _Quiet()})[method]
        lengths = np.array(lengths_of(folder))
        return Work(
            lambda: figures(len(pack(None, lengths.tolist(), size["capacity"], *more)), lengths, size["capacity"])
        )

    return start


def megatron(folder: Path, size: Mapping[str, Any]) -> Work:
    import bisect

    assert MEGATRON is not None
    source = Path(MEGATRON, "examples/multimodal/dataset_helpers.py").read_text(encoding="utf-8")
    scope = taken(source, ["search_for_fit", "greedy_knapsack"], {"bisect": bisect, "List": list})
    lengths = np.array(lengths_of(folder))

    def run() -> dict[str, float]:
        sizes = lengths.tolist()
        rows = scope["greedy_knapsack"](sizes, list(range(len(sizes))), size["capacity"])
        return figures(len(rows), lengths, size["capacity"])

    return Work(run)


# ---- one by one
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


def lmms_online(name: str) -> Any:
    def start(folder: Path, size: Mapping[str, Any]) -> Work:
        import typing
        from abc import ABC, abstractmethod

        scope: dict[str, Any] = {"ABC": ABC, "abstractmethod": abstractmethod, "typing": typing, "Any": typing.Any}
        scope |= {"Iterator": typing.Iterator, "List": list, "Tuple": tuple}
        out_of("lmms-engine", "lmms_engine/datasets/packing/base.py", ["OnlinePackingStrategy"], scope)
        out_of("lmms-engine", "lmms_engine/datasets/packing/online.py", [name], scope)
        lengths = np.array(lengths_of(folder))

        def run() -> dict[str, float]:
            made, rows = scope[name](size["capacity"]), 0
            for i, length in enumerate(lengths.tolist()):
                for _ in made.add(i, length):
                    rows += 1
            return figures(rows + sum(1 for _ in made.flush()), lengths, size["capacity"])

        return Work(run)

    return start


# ---- the arrays of rows
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
        from thalweg.core.sample import Ragged
        from thalweg.plan.rows import lay_out

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


# ---- balance
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


def peers(sides: dict[str, Any], **named: Side) -> dict[str, Side]:
    """Add the peers whose source is there, or will be: a smoke run fetches nothing."""
    words = {"trl": "trl", "llamafactory": "llamafactory", "axolotl": "axolotl", "lmms": "lmms-engine"}
    for name, side in named.items():
        package = words.get(name.partition("_")[0])
        there = MEGATRON is not None if package is None else not SMOKE or wheel(package) is not None
        if there:
            sides[name.replace("_", " ")] = side
    return sides


SETS = (("chat", 4096, 1_000_000), ("chat", 32_768, 1_000_000), ("media", 8192, 200_000))
ARROW = (*NUMPY, "pyarrow==26.0.1")


def sizes(kind: str, capacity: int, documents: int, **more: Any) -> dict[str, dict[str, Any]]:
    full = {"kind": kind, "capacity": capacity, "documents": documents, **more}
    return {"full": full, "smoke": full | {"documents": 2000}}


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
