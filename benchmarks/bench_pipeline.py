"""Offline pipelines beside DataTrove's: JSON lines through two filters into JSON lines, Parquet and compressed lines.

Both run their own local executor with one worker over the same files, 16 ranks, everything on: statistics,
provenance and durable commits on our side. Each side has run one document before, so that what its libraries load on
first use belongs to no side's figure. CPU microseconds a document are the figure to compare: wall time on a busy
machine says little. What is compared is the sorted list of ids that came out, as a hash. Two workers are compared with
one of ours, in wall time, on five times the files.
"""

import gzip
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from harness import Case, Side, Work, main

DATATROVE = ("datatrove[io,processing]==0.10.1", "orjson==3.11.3")
RANKS = 16
SIZES = {"full": {"documents": 200_000}, "smoke": {"documents": 800}}
LARGE = {"full": {"documents": 200_000, "times": 5}, "smoke": {"documents": 800, "times": 2}}
SYLLABLES = ["ka", "lo", "mi", "ter", "an", "se", "ri", "do", "ve", "pa", "ing", "st", "er", "al", "on", "tu"]


def prepare(folder: Path, size: Mapping[str, Any]) -> None:
    """Write documents of Zipf words, lengths lognormal with a median of 180 words."""
    rng = np.random.default_rng(0)
    words = np.array(["".join(rng.choice(SYLLABLES, rng.integers(1, 5))) for _ in range(30_000)])
    weights = np.cumsum(1 / np.arange(1, 30_001))
    lengths = np.clip(rng.lognormal(np.log(180), 0.6, size["documents"]), 20, 3000).astype(int)
    for name in ("in", "one"):
        (folder / name).mkdir(exist_ok=True)
    for f in range(RANKS):
        with (folder / "in" / f"{f:05d}.jsonl").open("w") as file:
            for i in range(f, size["documents"], RANKS):
                drawn = words[np.searchsorted(weights, rng.random(lengths[i]) * weights[-1])]
                meta = {"url": f"https://site{i % 997}.example.com/p/{i}", "score": round(float(rng.random()), 4)}
                row = {"text": " ".join(drawn) + ".", "id": f"doc-{i:08d}", "metadata": meta}
                file.write(json.dumps(row) + "\n")
    with (folder / "in" / "00000.jsonl").open() as file:
        (folder / "one" / "00000.jsonl").write_text(file.readline())
    for f in range(RANKS, RANKS * size.get("times", 1)):
        shutil.copy(folder / "in" / f"{f % RANKS:05d}.jsonl", folder / "in" / f"{f:05d}.jsonl")


def long_enough(doc: Any) -> bool:
    """The first filter."""
    return len(doc.text) > 200


def scored(doc: Any) -> bool:
    """The second filter."""
    return doc.metadata["score"] > 0.1


def _work(folder: Path, name: str, run: Callable[[Path, Path, int], None], size: Mapping[str, Any]) -> Work:
    """Run one document now, and the rest when it is measured; `run` takes input, output and the number of ranks."""
    out = folder / f"out-{name}-{os.getpid()}"
    run(folder / "one", out / "first", 1)
    shutil.rmtree(out)
    times = size.get("times", 1)

    def once() -> int:
        run(folder / "in", out, RANKS * times)
        return int(size["documents"] * times)

    return Work(once, lambda: _ids(out / "o"))


def _ids(folder: Path) -> str:
    """Hash the ids that came out, whatever the format, and remove the files."""
    found: list[str] = []
    for path in sorted(folder.iterdir()):
        if path.suffix == ".parquet":
            import pyarrow.parquet as pq

            found += pq.read_table(path, columns=["id"])["id"].to_pylist()
        else:
            found += [name.decode() for name in re.findall(rb'"id": ?"([^"]+)"', _plain(path))]  # no text has a quote
    shutil.rmtree(folder.parent)
    return blake2b("\n".join(sorted(found)).encode(), digest_size=8).hexdigest()


def _plain(path: Path) -> bytes:
    data = path.read_bytes()
    if path.suffix == ".gz":
        return gzip.decompress(data)
    if path.suffix == ".zst":
        import zstandard

        return zstandard.ZstdDecompressor().decompressobj().decompress(data)
    return data


def ours(writer: str, *, columns: bool = False, workers: int = 1) -> Any:
    """Our executor; `columns`: the filters get Arrow record batches."""

    def start(folder: Path, size: Mapping[str, Any]) -> Work:
        import pyarrow.compute as pc

        from thalweg.run import LocalPipelineExecutor
        from thalweg.run.script import launching
        from thalweg.steps import ColumnFilter, JsonlReader, JsonlWriter, LambdaFilter, ParquetWriter

        def run(source: Path, out: Path, ranks: int) -> None:
            filters: list[Any] = [LambdaFilter(long_enough), LambdaFilter(scored)]
            if columns:
                long = ColumnFilter(lambda b: pc.greater(b.column("text.length"), 200), ["text.length"])
                score = ColumnFilter(lambda b: pc.greater(b.column("metadata.score"), 0.1), ["metadata.score"])
                filters = [long, score]
            last: Any = {
                "jsonl": lambda: JsonlWriter(str(out / "o"), compression=None),
                "zstd": lambda: JsonlWriter(str(out / "o")),
                "parquet": lambda: ParquetWriter(str(out / "o")),
            }[writer]()
            steps = [JsonlReader(str(source)), *filters, last]
            with launching(quiet=True):
                LocalPipelineExecutor(steps, ranks, workers, str(out / "log")).run()

        return _work(folder, f"ours-{writer}-{columns}-{workers}", run, size)

    return start


def datatrove(writer: str) -> Any:
    """Their executor, as their documentation writes it."""

    def start(folder: Path, size: Mapping[str, Any]) -> Work:
        from datatrove.executor import LocalPipelineExecutor
        from datatrove.pipeline.filters import LambdaFilter
        from datatrove.pipeline.readers import JsonlReader
        from datatrove.pipeline.writers import JsonlWriter, ParquetWriter

        def run(source: Path, out: Path, ranks: int) -> None:
            last: Any = {
                "jsonl": lambda: JsonlWriter(str(out / "o"), compression=None),
                "gzip": lambda: JsonlWriter(str(out / "o")),
                "parquet": lambda: ParquetWriter(str(out / "o")),
            }[writer]()
            steps = [JsonlReader(str(source)), LambdaFilter(long_enough), LambdaFilter(scored), last]
            LocalPipelineExecutor(steps, ranks, 1, logging_dir=str(out / "log")).run()

        return _work(folder, f"datatrove-{writer}", run, size)

    return start


def _case(name: str, sides: Mapping[str, Side], sizes: Any = SIZES) -> Case:
    return Case(name, "documents", sides, sizes, prepare, warmup=0, rounds=3)


def _workers(name: str, writer: str) -> Case:
    sides = {f"thalweg, {k} workers": Side(ours(writer, workers=k)) for k in (2, 1)}
    return _case(f"{name}, two workers", sides, LARGE)


CASES = [
    _case(
        "JSONL, two filters, plain JSONL",
        {
            "thalweg, column filters": Side(ours("jsonl", columns=True)),
            "thalweg, Python filters": Side(ours("jsonl")),
            "datatrove": Side(datatrove("jsonl"), DATATROVE),
        },
    ),
    _case(
        "JSONL, two filters, Parquet (snappy)",
        {
            "thalweg, column filters": Side(ours("parquet", columns=True)),
            "thalweg, Python filters": Side(ours("parquet")),
            "datatrove": Side(datatrove("parquet"), DATATROVE),
        },
    ),
    _case(
        "JSONL, two filters, JSONL compressed by default",
        {
            "thalweg, zstd": Side(ours("zstd")),
            "datatrove, gzip": Side(datatrove("gzip"), DATATROVE),
        },
    ),
    _workers("JSONL to zstd", "zstd"),
    _workers("JSONL to plain", "jsonl"),
]

if __name__ == "__main__":
    main(__file__, CASES)
