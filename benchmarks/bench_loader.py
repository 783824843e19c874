"""The planned loader beside torch, torchdata and Megatron loaders: token samples, batch 64, one process.

First as the peers do it when nothing more is asked of them: int32 ids end to end and the lengths; ours gives labels and
position ids too, in the same type, and once ids and borders alone. Then all hand over torch tensors in one flat row:
input_ids, labels, position ids and segment borders, int64. The content that is compared is the sum of all ids (and of
all labels in the loss), which does not depend on the order. Further cases: what state, ledger and meters cost, and
where the place in a huge plan is found.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from harness import Case, Side, Work, main

TORCH = ("torch==2.13.0", "numpy==2.4.6")
STATEFUL = ("torch==2.13.0", "numpy==2.4.6", "torchdata==0.11.0")
MEGATRON = ("torch==2.13.0", "numpy==2.4.6", "megatron-core==0.16.1")
BATCH = 64


def prepare(folder: Path, size: Mapping[str, Any]) -> None:
    """Write the same samples as flat int32 with offsets, as records, and in Megatron's format."""
    import thalweg as tw

    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(5.6, 0.9, size["samples"]), 16, 4096).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    tokens = rng.integers(1, 50_000, offsets[-1], dtype=np.int32)
    np.save(folder / "offsets.npy", offsets)
    tokens.tofile(folder / "tokens.bin")
    with tw.create_records(str(folder / "records"), overwrite=True) as writer:
        for a, b in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
            writer.write({"input_ids": tokens[a:b]})
    write_megatron(folder / "megatron", tokens, lengths)


def write_megatron(prefix: Path, tokens: Any, lengths: Any) -> None:
    """Write .bin and .idx as Megatron's IndexedDatasetBuilder does: one document a sequence, int32 tokens."""
    tokens.tofile(prefix.with_suffix(".bin"))
    pointers = np.concatenate([[0], np.cumsum(lengths[:-1])]).astype(np.int64) * 4
    with prefix.with_suffix(".idx").open("wb") as file:
        file.write(b"MMIDIDX\x00\x00")
        file.write(np.uint64(1).tobytes() + np.uint8(4).tobytes())  # version, int32
        file.write(np.uint64(len(lengths)).tobytes() + np.uint64(len(lengths) + 1).tobytes())
        file.write(lengths.astype(np.int32).tobytes() + pointers.tobytes())
        file.write(np.arange(len(lengths) + 1, dtype=np.int64).tobytes())


def take(batches: Any) -> tuple[int, int, int]:
    """Read an epoch: samples, sum of ids, sum of labels in the loss."""
    samples = ids = labels = 0
    for batch in batches:
        samples += int((batch["position_ids"] == 0).sum())
        ids += int(batch["input_ids"].sum())
        labels += int(batch["labels"][batch["labels"] != -100].sum())
    return samples, ids, labels


def count(batches: Any) -> int:
    """Read an epoch for its time alone."""
    return sum(len(batch["cu_seq_lens_q"]) - 1 for batch in batches)


def ours(folder: Path, _size: Mapping[str, Any]) -> Work:
    import thalweg as tw

    feed = tw.from_records(str(folder / "records")).shuffle().batch(BATCH, pad="none")
    loader = tw.Loader(feed, tail="pad", return_tensors="pt")
    return Work(lambda: count(loader), lambda: take(loader))


def flat(rows: list[Any]) -> dict[str, Any]:
    """Collate numpy rows as a flat batch of torch tensors, as well as numpy can."""
    import torch

    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    ends = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(lengths, out=ends[1:])
    ids = np.concatenate(rows).astype(np.int64)
    labels = ids.copy()
    labels[ends[:-1]] = -100
    positions = np.arange(len(ids)) - np.repeat(ends[:-1], lengths)
    given = {"input_ids": ids[None], "labels": labels[None], "position_ids": positions[None], "cu_seq_lens_q": ends}
    return {**{k: torch.from_numpy(v) for k, v in given.items()}, "max_length_q": int(lengths.max())}


class Mapped:
    """A map-style data set over the mapped file."""

    def __init__(self, folder: Path) -> None:
        self.offsets = np.load(folder / "offsets.npy", mmap_mode="r")
        self.tokens = np.memmap(folder / "tokens.bin", dtype=np.int32, mode="r")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> Any:
        return np.array(self.tokens[self.offsets[i] : self.offsets[i + 1]])


def plain(rows: list[Any]) -> tuple[Any, Any]:
    """Collate rows as all loaders are compared with: the tokens end to end in their own type, and the lengths."""
    rows = [np.asarray(row) for row in rows]
    return np.concatenate(rows), np.fromiter((len(row) for row in rows), np.int64, len(rows))


def ours_int32(collate: str) -> Callable[[Path, Mapping[str, Any]], Work]:
    """Our loader with arrays of int32; collate "hf" has labels and positions, "varlen" ids and borders alone."""

    def start(folder: Path, _size: Mapping[str, Any]) -> Work:
        import thalweg as tw

        feed = tw.from_records(str(folder / "records")).shuffle()
        batched = feed.batch(BATCH, pad="none", collate=collate, dtype="int32")
        loader = tw.Loader(batched, tail="pad", return_tensors="np")
        borders = "cu_seqlens" if collate == "varlen" else "cu_seq_lens_q"
        return Work(
            lambda: sum(len(batch[borders]) - 1 for batch in loader),
            lambda: _sums((batch["input_ids"], np.diff(batch[borders])) for batch in loader),
        )

    return start


def _sums(batches: Any) -> tuple[int, int]:
    """Read an epoch: samples, sum of ids."""
    samples = ids = 0
    for flat_ids, lengths in batches:
        samples += len(lengths)
        ids += int(flat_ids.sum(dtype=np.int64))
    return samples, ids


def _work(loader: Any, collate: Any) -> Work:
    """Read a peer's loader in the form that its collate function gives."""
    if collate is flat:
        return Work(lambda: count(loader), lambda: take(loader))
    return Work(lambda: sum(len(lengths) for _, lengths in loader), lambda: _sums(loader))


def _shuffled(loader_class: Any, folder: Path, collate: Any) -> Work:
    """Read the mapped file in a shuffled order through torch's DataLoader, or one with its arguments."""
    import torch

    draws = torch.Generator().manual_seed(0)
    loader = loader_class(Mapped(folder), BATCH, shuffle=True, collate_fn=collate, generator=draws)
    return _work(loader, collate)


def torch_loader(collate: Any) -> Callable[[Path, Mapping[str, Any]], Work]:
    def start(folder: Path, _size: Mapping[str, Any]) -> Work:
        from torch.utils.data import DataLoader

        return _shuffled(DataLoader, folder, collate)

    return start


def stateful(collate: Any) -> Callable[[Path, Mapping[str, Any]], Work]:
    def start(folder: Path, _size: Mapping[str, Any]) -> Work:
        from torchdata.stateful_dataloader import StatefulDataLoader

        return _shuffled(StatefulDataLoader, folder, collate)

    return start


def megatron(collate: Any) -> Callable[[Path, Mapping[str, Any]], Work]:
    return lambda folder, _size: _megatron(folder, collate)


def _megatron(folder: Path, collate: Any) -> Work:
    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    data = IndexedDataset(str(folder / "megatron"))
    order = np.random.RandomState(0).permutation(len(data))

    class Shuffled(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return len(order)

        def __getitem__(self, i: int) -> Any:
            return data[int(order[i])]

    def consecutive() -> Iterator[list[int]]:
        for at in range(0, len(order), BATCH):
            yield list(range(at, min(at + BATCH, len(order))))

    class Sampler:
        def __iter__(self) -> Iterator[list[int]]:
            return consecutive()

        def __len__(self) -> int:
            return (len(order) + BATCH - 1) // BATCH

    loader: Any = torch.utils.data.DataLoader(Shuffled(), batch_sampler=Sampler(), collate_fn=collate)  # type: ignore[arg-type]
    return _work(loader, collate)


def kept(*, all_on: bool) -> Callable[[Path, Mapping[str, Any]], Work]:
    """Our loader with a ledger, a state at each batch and meters read at each, or with none of them."""

    def start(folder: Path, _size: Mapping[str, Any]) -> Work:
        import tempfile

        import thalweg as tw

        feed = tw.from_records(str(folder / "records")).shuffle().batch(BATCH, pad="none")
        ledger = tempfile.mkdtemp() if all_on else None
        loader = tw.Loader(feed, tail="pad", return_tensors="pt", ledger=ledger)

        def run() -> int:
            n = 0
            for i, batch in enumerate(loader):
                n += len(batch["cu_seq_lens_q"]) - 1
                if all_on and i % 10 == 0:
                    loader.state_dict()
                    loader.stats()
            return n

        return Work(run, lambda: take(loader))

    return start


class Faked:
    """A set of 10^9 samples whose lengths are worked out when they are asked for."""

    fingerprint = "faked"
    columns = ("input_ids",)
    facts: Mapping[str, Any] = {}
    lineage: Mapping[str, Any] = {}
    lengths = None

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def read(self, indices: Any, _columns: Any = None) -> Any:
        from thalweg.core.sample import Ragged

        sizes = indices % 512 + 16
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        return {"input_ids": Ragged(np.ones(offsets[-1], np.int32), offsets)}

    def ids(self, indices: Any) -> list[str]:
        return [str(i) for i in indices.tolist()]

    def id_hashes(self, indices: Any) -> Any:
        return indices.astype(np.uint64)


def resume(_folder: Path, size: Mapping[str, Any]) -> Work:
    """Make a loader, load a state in the middle, and take one batch: seconds a resume."""
    import time

    from thalweg.core.topology import Topology
    from thalweg.feed.feed import Feed
    from thalweg.feed.loader import FeedLoader
    from thalweg.feed.stages import From

    feed = Feed((From(Faked(size["samples"]), "faked"),)).shuffle().batch(BATCH, pad="none")
    seen: list[float] = []

    def once(fraction: float) -> int:
        start = time.perf_counter()
        loader = FeedLoader(feed, topology=Topology(rank=3, world=8), epochs=None)
        state = loader.state_dict()
        row = int(size["samples"] * fraction)
        block = loader.node.compiled.order.block_at(2, row)
        first = loader.node.compiled.order.bounds(2, block)[0]
        state.update(
            epoch="2", block=str(block), row=str(row - first), row_in_epoch=str(row), rows_before="0", step="7"
        )
        loader.load_state_dict(state)
        next(iter(loader))
        seen.append(time.perf_counter() - start)
        return 1

    def run() -> Mapping[str, float]:
        import resource

        places = [once(f) for f in np.linspace(0.001, 0.999, 20)]
        rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return {"units": len(places), "worst ms": max(seen[-20:]) * 1e3, "peak MB": rss}

    return Work(run)


def permutation(_folder: Path, size: Mapping[str, Any]) -> Work:
    from thalweg.plan.shuffle import CHUNK, Permutation

    order = Permutation(size["samples"], "bench", 0)
    places = np.arange(CHUNK)

    def run() -> int:
        for _ in range(100):
            order(places)
        return 100 * CHUNK

    return Work(run)


SIZES = {"full": {"samples": 200_000}, "smoke": {"samples": 500}}
HUGE = {"full": {"samples": 10**9}, "smoke": {"samples": 10**6}}
CASES = [
    Case(
        name=f"planned feed, batch {BATCH}, int32 as the peers give it",
        unit="samples",
        prepare=prepare,
        sides={
            "thalweg, with labels and positions": Side(ours_int32("hf")),
            "thalweg, ids and borders alone": Side(ours_int32("varlen")),
            "torch DataLoader": Side(torch_loader(plain), TORCH),
            "torchdata StatefulDataLoader": Side(stateful(plain), STATEFUL),
            "Megatron IndexedDataset": Side(megatron(plain), MEGATRON),
        },
        sizes=SIZES,
    ),
    Case(
        name=f"planned feed, batch {BATCH}, one flat row",
        unit="samples",
        prepare=prepare,
        sides={
            "thalweg": Side(ours),
            "torch DataLoader": Side(torch_loader(flat), TORCH),
            "torchdata StatefulDataLoader": Side(stateful(flat), STATEFUL),
            "Megatron IndexedDataset": Side(megatron(flat), MEGATRON),
        },
        sizes=SIZES,
    ),
    Case(
        name="state, ledger and meters on",
        unit="samples",
        prepare=prepare,
        sides={"all on": Side(kept(all_on=True)), "none": Side(kept(all_on=False))},
        sizes=SIZES,
    ),
    Case(name="resume anywhere in 10^9 samples", unit="resumes", sides={"thalweg": Side(resume)}, sizes=HUGE, rounds=3),
    Case(name="permutation of 10^9", unit="indices", sides={"thalweg": Side(permutation)}, sizes=HUGE, rounds=3),
]

if __name__ == "__main__":
    main(__file__, CASES)
