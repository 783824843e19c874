"""The formats that records are compared with: each opened as (one row, some rows end to end, all rows).

A peer writes its own file once, in its own environment, before anything is measured. Knows no measurement.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

ARROW = ("pyarrow==26.0.1", "numpy==2.4.6")
ARRAY_RECORD = ("array-record==0.8.6", "numpy==2.4.6")
LANCE = ("pylance==14.0.2", "pyarrow==26.0.1", "numpy==2.4.6")
MINDSPORE = ("mindspore==2.10.0", "numpy==2.4.6")
MEGATRON = ("megatron-core==0.16.1", "torch==2.13.0", "numpy==2.4.6")


def prepare(folder: Path, size: Mapping[str, Any]) -> None:
    """Write the samples as .bin with offsets, as one Arrow file, and as records in one shard and in many."""
    import pyarrow as pa

    import thalweg as tw

    rng, n = np.random.default_rng(20240601), size["samples"]
    lengths = np.clip(rng.lognormal(np.log(300) - 0.5, 1.0, n).round(), 1, 8192).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    vocabulary = 151_936
    ids = np.floor(vocabulary ** rng.random(int(offsets[-1])) - 1).astype(np.int32)
    np.save(folder / "offsets.npy", offsets)
    ids.tofile(folder / "ids.bin")
    np.save(folder / "order.npy", rng.permutation(n))
    with pa.OSFile(str(folder / "raw.arrow"), "wb") as sink:
        write_raw(sink, ids, offsets, 1024)
    for name, shard_bytes in (("one", "1GB"), ("many", max(ids.nbytes // 200, 20_000))):
        with tw.create_records(folder / name, shard_bytes=shard_bytes, overwrite=True) as w:
            w.write_batch({"input_ids": tw.Ragged(ids, offsets)})


def data(folder: Path) -> tuple[Any, Any, Any]:
    """Give ids (mapped), offsets, and the order of random reads."""
    ids = np.memmap(folder / "ids.bin", np.int32, "r")
    return ids, np.load(folder / "offsets.npy"), np.load(folder / "order.npy")


def batches(ids: Any, offsets: Any, rows: int) -> Iterator[Any]:
    """Give Arrow batches of so many rows, without copying ids."""
    import pyarrow as pa

    for a in range(0, len(offsets) - 1, rows):
        b = min(a + rows, len(offsets) - 1)
        at = pa.array(offsets[a : b + 1] - offsets[a])
        values = pa.array(np.asarray(ids[offsets[a] : offsets[b]]))
        yield pa.record_batch([pa.LargeListArray.from_arrays(at, values)], names=["input_ids"])


def write_raw(sink: Any, ids: Any, offsets: Any, rows: int) -> None:
    """Write Arrow IPC batch by batch, with nothing around it."""
    import pyarrow as pa

    writer = None
    for batch in batches(ids, offsets, rows):
        writer = writer or pa.ipc.new_file(sink, batch.schema)
        writer.write_batch(batch)
    assert writer is not None
    writer.close()


def ours(name: str, **options: Any) -> Callable[[Path], tuple[Any, Any, Any]]:
    """Our record set."""

    def open_it(folder: Path) -> tuple[Any, Any, Any]:
        import thalweg as tw

        rec = tw.open_records(folder / name, **options)
        return (
            lambda i: rec[i]["input_ids"],
            lambda rows: rec.read(rows, ["input_ids"])["input_ids"].values,
            lambda: (row["input_ids"] for row in rec),
        )

    return open_it


def memmap(folder: Path) -> tuple[Any, Any, Any]:
    """Plain .bin with offsets: copies for single rows, views joined by numpy (the tuned loop) for many."""
    ids, offsets, _ = data(folder)
    bounds, plain = offsets.tolist(), np.asarray(ids).view(np.ndarray)

    def some(rows: Any) -> Any:
        return np.concatenate([plain[bounds[i] : bounds[i + 1]] for i in rows.tolist()])

    return lambda i: np.array(ids[offsets[i] : offsets[i + 1]]), some, None


def raw_ipc(folder: Path) -> tuple[Any, Any, Any]:
    """Arrow IPC through numpy offsets; `take` for many rows."""
    import pyarrow as pa

    file = pa.ipc.open_file(pa.memory_map(str(folder / "raw.arrow")))
    column = file.read_all().column(0)

    def everything() -> Iterator[Any]:
        for k in range(file.num_record_batches):
            array = file.get_batch(k).column(0)
            offsets, values = np.asarray(array.offsets), array.values.to_numpy()
            for j in range(len(offsets) - 1):
                yield values[offsets[j] : offsets[j + 1]]

    def some(rows: Any) -> Any:
        return column.take(pa.array(rows)).combine_chunks().flatten().to_numpy()

    return lambda i: column[i].values.to_numpy(), some, everything


def parquet(folder: Path) -> tuple[Any, Any, Any]:
    """Parquet, zstd, row groups of 1,024; the last four row groups are kept."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = folder / "x.parquet"
    if not path.exists():
        ids, offsets, _ = data(folder)
        table = pa.Table.from_batches(list(batches(ids, offsets, 1024)))
        pq.write_table(table, path, compression="zstd", row_group_size=1024)
    file = pq.ParquetFile(path, memory_map=True)
    kept: dict[int, tuple[Any, Any]] = {}

    def group(k: int) -> tuple[Any, Any]:
        if k not in kept:
            if len(kept) >= 4:
                kept.pop(next(iter(kept)))
            array = file.read_row_group(k, use_threads=False).column(0).combine_chunks()
            kept[k] = np.asarray(array.offsets), array.values.to_numpy()
        return kept[k]

    def one(i: int) -> Any:
        offsets, values = group(i // 1024)
        return values[offsets[i % 1024] : offsets[i % 1024 + 1]]

    def everything() -> Iterator[Any]:
        for k in range(file.num_row_groups):
            offsets, values = group(k)
            for j in range(len(offsets) - 1):
                yield values[offsets[j] : offsets[j + 1]]

    return one, lambda rows: np.concatenate([one(i) for i in rows.tolist()]), everything


def megatron(folder: Path) -> tuple[Any, Any, Any]:
    """Megatron-Core's own IndexedDataset over a file of its own builder."""
    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder

    prefix = str(folder / "megatron")
    if not os.path.exists(prefix + ".idx"):
        ids, offsets, _ = data(folder)
        builder = IndexedDatasetBuilder(prefix + ".bin", dtype=np.int32)
        for a, b in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
            builder.add_item(torch.from_numpy(np.array(ids[a:b])))
            builder.end_document()
        builder.finalize(prefix + ".idx")
    found = IndexedDataset(prefix, mmap=True)
    return found.__getitem__, None, lambda: (found[i] for i in range(len(found)))


def array_record(folder: Path) -> tuple[Any, Any, Any]:
    """array_record, uncompressed, a record a group: its fastest setting for random reads."""
    from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter

    path = folder / "x.array_record"
    if not path.exists():
        ids, offsets, _ = data(folder)
        writer = ArrayRecordWriter(str(path), "group_size:1,uncompressed")
        for a, b in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
            writer.write(np.array(ids[a:b]).tobytes())
        writer.close()
    reader = ArrayRecordReader(str(path), "readahead_buffer_size:0")

    def some(rows: Any) -> Any:
        return np.concatenate([np.frombuffer(b, np.int32) for b in reader.read(rows.tolist())])

    def everything() -> Iterator[Any]:
        for a in range(0, reader.num_records(), 1024):
            for raw in reader.read(a, min(a + 1024, reader.num_records())):
                yield np.frombuffer(raw, np.int32)

    return lambda i: np.frombuffer(reader.read([i])[0], np.int32), some, everything


def lance(folder: Path) -> tuple[Any, Any, Any]:
    """Lance with its defaults."""
    import lance as library
    import pyarrow as pa

    path = folder / "x.lance"
    if not path.exists():
        ids, offsets, _ = data(folder)
        schema = pa.schema([("input_ids", pa.large_list(pa.int32()))])
        reader = pa.RecordBatchReader.from_batches(schema, batches(ids, offsets, 1024))
        library.write_dataset(reader, str(path), schema=schema)
    found = library.dataset(str(path))

    def some(rows: Any) -> Any:
        return found.take(rows.tolist()).column(0).combine_chunks().flatten().to_numpy()

    def everything() -> Iterator[Any]:
        for batch in found.to_batches():
            array = batch.column(0)
            offsets, values = np.asarray(array.offsets), array.values.to_numpy(zero_copy_only=False)
            for j in range(len(offsets) - 1):
                yield values[offsets[j] : offsets[j + 1]]

    return lambda i: some(np.array([i])), some, everything


def mindrecord(folder: Path) -> tuple[Any, Any, Any]:
    """MindRecord through the mindspore package: by index, by a sampler, in order."""
    import mindspore.dataset as ds
    from mindspore.mindrecord import FileWriter

    path = folder / "x.mindrecord"
    if not path.exists():
        ids, offsets, _ = data(folder)
        writer = FileWriter(str(path), shard_num=1, overwrite=True)
        writer.add_schema({"input_ids": {"type": "int32", "shape": [-1]}}, "tokens")
        n = len(offsets) - 1
        for a in range(0, n, 1024):
            rows = range(a, min(a + 1024, n))
            writer.write_raw_data([{"input_ids": np.array(ids[offsets[i] : offsets[i + 1]])} for i in rows])
        writer.commit()
    found = ds.MindDataset(str(path), shuffle=False)

    def everything() -> Iterator[Any]:
        plain = ds.MindDataset(str(path), shuffle=False)
        return (row[0] for row in plain.create_tuple_iterator(num_epochs=1, output_numpy=True))

    return lambda i: found[int(i)][0], lambda rows: np.concatenate([found[int(i)][0] for i in rows]), everything


READERS = {
    "ours": (ours("one"), ()),
    "ours, 200 shards": (ours("many"), ()),
    "ours, verified": (ours("one", verify=True), ()),
    "memmap copy": (memmap, ("numpy==2.4.6",)),
    "raw Arrow IPC": (raw_ipc, ARROW),
    "Megatron IndexedDataset": (megatron, MEGATRON),
    "Parquet zstd": (parquet, ARROW),
    "array_record": (array_record, ARRAY_RECORD),
    "Lance": (lance, LANCE),
    "MindRecord": (mindrecord, MINDSPORE),
}
