"""The peers of the packing benchmarks: their functions, unedited, and the length sets that all sides pack.

Decides how a function gets out of a wheel (fetched without what it depends on) or out of a checkout of Megatron-LM
(named by THALWEG_MEGATRON), and what the figures of a plan are. Measures nothing.
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
from harness import HOME, Side, Work

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


def trl(batch: int | None) -> Any:
    def start(folder: Path, size: Mapping[str, Any]) -> Work:
        from collections import defaultdict, deque
        from typing import Literal

        import pyarrow as pa
        import pyarrow.compute as pc

        scope: dict[str, Any] = {
            "pa": pa,
            "pyarrow": pa,
            "pc": pc,
            "np": np,
            "defaultdict": defaultdict,
            "deque": deque,
        }
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
