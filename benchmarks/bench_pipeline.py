"""Offline pipelines beside DataTrove's: JSON lines through two filters into JSON lines, Parquet and compressed lines.

Both run their own local executor with one worker over the same files, 16 ranks, everything on: statistics,
provenance and durable commits on our side. CPU microseconds a document are the figure to compare: wall time on a busy
machine says little. What is compared is the sorted list of ids that came out, as a hash.
"""

import gzip
import json
import os
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
SYLLABLES = ["ka", "lo", "mi", "ter", "an", "se", "ri", "do", "ve", "pa", "ing", "st", "er", "al", "on", "tu"]


def prepare(folder: Path, size: Mapping[str, Any]) -> None:
    """Write documents of Zipf words, lengths lognormal with a median of 180 words."""
    rng = np.random.default_rng(0)
    words = np.array(["".join(rng.choice(SYLLABLES, rng.integers(1, 5))) for _ in range(30_000)])
    weights = np.cumsum(1 / np.arange(1, 30_001))
    lengths = np.clip(rng.lognormal(np.log(180), 0.6, size["documents"]), 20, 3000).astype(int)
    (folder / "in").mkdir(exist_ok=True)
    for f in range(RANKS):
        with (folder / "in" / f"{f:05d}.jsonl").open("w") as file:
            for i in range(f, size["documents"], RANKS):
                drawn = words[np.searchsorted(weights, rng.random(lengths[i]) * weights[-1])]
                meta = {"url": f"https://site{i % 997}.example.com/p/{i}", "score": round(float(rng.random()), 4)}
                row = {"text": " ".join(drawn) + ".", "id": f"doc-{i:08d}", "metadata": meta}
                file.write(json.dumps(row) + "\n")


def long_enough(doc: Any) -> bool:
    """The first filter."""
    return len(doc.text) > 200


def scored(doc: Any) -> bool:
    """The second filter."""
    return doc.metadata["score"] > 0.1


def _work(folder: Path, name: str, run: Callable[[Path], None], documents: int) -> Work:
    out = folder / f"out-{name}-{os.getpid()}"

    def once() -> int:
        shutil.rmtree(out, ignore_errors=True)
        run(out)
        return documents

    return Work(once, lambda: _ids(out / "o"))


def _ids(folder: Path) -> str:
    """Hash the ids that came out, whatever the format, and remove the files."""
    found: list[str] = []
    for path in sorted(folder.iterdir()):
        if path.suffix == ".parquet":
            import pyarrow.parquet as pq

            found += pq.read_table(path, columns=["id"])["id"].to_pylist()
        else:
            found += [json.loads(line)["id"] for line in _plain(path).splitlines()]
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


def ours(writer: str, columns: bool) -> Any:
    """Our executor; `columns`: the filters get Arrow record batches."""

    def start(folder: Path, size: Mapping[str, Any]) -> Work:
        import pyarrow.compute as pc

        from thalweg.run import LocalPipelineExecutor
        from thalweg.run.script import launching
        from thalweg.steps import ColumnFilter, JsonlReader, JsonlWriter, LambdaFilter, ParquetWriter

        def run(out: Path) -> None:
            filters: list[Any] = [LambdaFilter(long_enough), LambdaFilter(scored)]
            if columns:
                long = ColumnFilter(lambda batch: pc.greater(pc.utf8_length(batch.column("text")), 200))
                score = ColumnFilter(lambda b: pc.greater(b.column("metadata.score"), 0.1), ["metadata.score"])
                filters = [long, score]
            last: Any = {
                "jsonl": lambda: JsonlWriter(str(out / "o"), compression=None),
                "zstd": lambda: JsonlWriter(str(out / "o")),
                "parquet": lambda: ParquetWriter(str(out / "o")),
            }[writer]()
            steps = [JsonlReader(str(folder / "in")), *filters, last]
            with launching(quiet=True):
                LocalPipelineExecutor(steps, RANKS, 1, str(out / "log")).run()

        return _work(folder, f"ours-{writer}-{columns}", run, size["documents"])

    return start


def datatrove(writer: str) -> Any:
    """Their executor, as their documentation writes it."""

    def start(folder: Path, size: Mapping[str, Any]) -> Work:
        from datatrove.executor import LocalPipelineExecutor
        from datatrove.pipeline.filters import LambdaFilter
        from datatrove.pipeline.readers import JsonlReader
        from datatrove.pipeline.writers import JsonlWriter, ParquetWriter

        def run(out: Path) -> None:
            last: Any = {
                "jsonl": lambda: JsonlWriter(str(out / "o"), compression=None),
                "gzip": lambda: JsonlWriter(str(out / "o")),
                "parquet": lambda: ParquetWriter(str(out / "o")),
            }[writer]()
            steps = [JsonlReader(str(folder / "in")), LambdaFilter(long_enough), LambdaFilter(scored), last]
            LocalPipelineExecutor(steps, RANKS, 1, logging_dir=str(out / "log")).run()

        return _work(folder, f"datatrove-{writer}", run, size["documents"])

    return start


def _case(name: str, sides: Mapping[str, Side]) -> Case:
    return Case(name, "documents", sides, SIZES, prepare, warmup=0, rounds=3)


CASES = [
    _case(
        "JSONL, two filters, JSONL",
        {
            "thalweg, Python filters": Side(ours("jsonl", False)),
            "thalweg, column filters": Side(ours("jsonl", True)),
            "datatrove": Side(datatrove("jsonl"), DATATROVE),
        },
    ),
    _case(
        "JSONL, two filters, Parquet (snappy)",
        {
            "thalweg, Python filters": Side(ours("parquet", False)),
            "datatrove": Side(datatrove("parquet"), DATATROVE),
        },
    ),
    _case(
        "JSONL, two filters, JSONL as each compresses by default",
        {
            "thalweg, zstd": Side(ours("zstd", False)),
            "datatrove, gzip": Side(datatrove("gzip"), DATATROVE),
        },
    ),
]

if __name__ == "__main__":
    main(__file__, CASES)
