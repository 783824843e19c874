"""Writing and opening records beside raw Arrow IPC: rate, CPU time, and what opening a wide set takes.

Neither side waits for the disk. The wide sets are made of a small one: their manifest, index and lengths are of full
size, their shards do not exist.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from harness import Case, Side, Work, main
from record_formats import ARROW, batches, data, prepare, write_raw


# ---- writing
def samples(ids: Any, bounds: list[int]) -> list[dict[str, Any]]:
    """Give the rows as both sides are fed them one by one."""
    return [{"input_ids": ids[a:b]} for a, b in pairwise(bounds)]


def write_ours(by: str) -> Callable[[Path, Mapping[str, Any]], Work]:
    """Our writer, checksums and fingerprint on, without waiting for the disk."""

    def start(folder: Path, _size: Mapping[str, Any]) -> Work:
        import thalweg as tw

        ids, offsets, _ = data(folder)
        ids, bounds = np.array(ids), offsets.tolist()
        rows = samples(ids, bounds)

        def run() -> int:
            shutil.rmtree(folder / "written", ignore_errors=True)
            with tw.create_records(folder / "written", sync=False, shard_bytes="1GB") as w:
                if by == "rows":
                    for row in rows:
                        w.write(row)
                else:
                    for a in range(0, len(rows), 16_384):
                        b = min(a + 16_384, len(rows))
                        part = tw.Ragged(ids[bounds[a] : bounds[b]], offsets[a : b + 1] - offsets[a])
                        w.write_batch({"input_ids": part})
            return len(rows)

        return Work(run)

    return start


def write_ipc(by: str) -> Callable[[Path, Mapping[str, Any]], Work]:
    """Raw Arrow IPC fed batches, or fed the same rows, which are joined 1,024 at a time."""

    def start(folder: Path, _size: Mapping[str, Any]) -> Work:
        import pyarrow as pa

        ids, offsets, _ = data(folder)
        ids, bounds = np.array(ids), offsets.tolist()
        rows = samples(ids, bounds)

        def joined() -> Iterator[Any]:
            held: list[Any] = []
            for row in rows:
                held.append(row["input_ids"])
                if len(held) == 1024:
                    yield from batches(
                        np.concatenate(held), np.concatenate([[0], np.cumsum(list(map(len, held)))]), 1024
                    )
                    held.clear()
            if held:
                yield from batches(np.concatenate(held), np.concatenate([[0], np.cumsum(list(map(len, held)))]), 1024)

        def run() -> int:
            (folder / "written.arrow").unlink(missing_ok=True)
            with pa.OSFile(str(folder / "written.arrow"), "wb") as sink:
                if by == "batches":
                    write_raw(sink, ids, offsets, 1024)
                else:
                    writer = None
                    for batch in joined():
                        writer = writer or pa.ipc.new_file(sink, batch.schema)
                        writer.write_batch(batch)
                    assert writer is not None
                    writer.close()
            return len(rows)

        return Work(run)

    return start


# ---- opening
def prepare_wide(folder: Path, size: Mapping[str, Any]) -> None:
    """Write a small set, and grow its manifest to many shards and rows that do not exist."""
    import msgspec

    import thalweg as tw
    from thalweg.store.records import facts, manifest, place

    block = 4096
    with tw.create_records(folder / "set", shard_bytes="1MB", overwrite=True) as w:
        w.write_batch({"input_ids": tw.Ragged(np.zeros(block, np.int32), np.arange(block + 1))})
        w.write_batch({"input_ids": tw.Ragged(np.zeros(block, np.int32), np.arange(block + 1))})
    path = place.manifest_path(folder / "set", 0)
    small = place.read_manifest(path)
    per, shards = size["rows"] // size["shards"], size["shards"]
    blocks = max(per // block, 1)
    width = small.layouts[0].width
    rows = blocks * block * shards
    index = np.zeros((shards * blocks, width), np.int64)
    index[:, 0] = np.tile(np.arange(blocks) * block, shards)
    (folder / "set" / "data-wide.index").write_bytes(index.tobytes())
    with (folder / "set" / "data-wide.length.npy").open("wb") as file:
        file.write(facts.npy_header(np.dtype(np.int32), rows))
        file.truncate(128 + 4 * rows)  # a sparse file: all lengths are 0
    names = ("data-wide.index", "data-wide.length.npy")
    described = [manifest.File(n, os.path.getsize(folder / "set" / n), "") for n in names]
    one = small.shards[0]
    wide = [
        msgspec.structs.replace(
            one,
            name=f"data-wide.{k:05d}.arrow",
            rows=blocks * block,
            size=10**8,
            blocks=blocks,
            index=0,
            at=k * blocks * width * 8,
        )
        for k in range(shards)
    ]
    grown = msgspec.structs.replace(
        small,
        rows=rows,
        shards=wide,
        indexes=described[:1],
        facts={**small.facts, "length": manifest.Fact("int32", described[1])},
    )
    path.write_bytes(manifest.pack(grown))


def open_wide(folder: Path, _size: Mapping[str, Any]) -> Work:
    """Open the set, make the table of its blocks, read one length; time and anonymous memory that this took."""
    from thalweg.store.records import open_records

    def anonymous() -> float:
        text = Path("/proc/self/status").read_text()
        return float(next(line.split()[1] for line in text.splitlines() if line.startswith("RssAnon"))) / 1024

    def run() -> Mapping[str, float]:
        before, begun = anonymous(), time.perf_counter()
        rec = open_records(folder / "set")
        assert rec.lengths is not None
        assert int(rec.lengths[len(rec) // 2]) == 0
        took = time.perf_counter() - begun
        return {"units": 1, "open ms": took * 1e3, "anonymous MB": anonymous() - before, "rows": len(rec)}

    return Work(run)


SIZES = {"full": {"samples": 200_000, "reads": 60_000}, "smoke": {"samples": 3000, "reads": 1100}}
CASES = [
    Case(
        "write batches",
        "rows",
        {"ours": Side(write_ours("batches")), "raw Arrow IPC": Side(write_ipc("batches"), ARROW)},
        SIZES,
        prepare,
    ),
    Case(
        "write rows",
        "rows",
        {"ours": Side(write_ours("rows")), "raw Arrow IPC": Side(write_ipc("rows"), ARROW)},
        SIZES,
        prepare,
    ),
    Case(
        "open a set of many rows",
        "sets",
        {"ours": Side(open_wide)},
        {"full": {"rows": 10**9, "shards": 10_000}, "smoke": {"rows": 10**6, "shards": 100}},
        prepare_wide,
        warmup=0,
    ),
    Case(
        "open a set of 1 M rows",
        "sets",
        {"ours": Side(open_wide)},
        {"full": {"rows": 10**6, "shards": 4}, "smoke": {"rows": 10**5, "shards": 4}},
        prepare_wide,
        warmup=0,
    ),
]

if __name__ == "__main__":
    main(__file__, CASES)
