"""The first table: our loader beside torch's DataLoader over the same memory-mapped tokens, batch 64, one process.

Both hand over a shuffled epoch as torch tensors in the form of `forward`: input_ids and labels, right padded with an
attention mask, or one flat row with position ids. The content that is compared is the sum of all ids and of all
labels in the loss, which does not depend on the order.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from harness import Case, Side, Work, main

TORCH = ("torch==2.13.0", "numpy==2.4.6")
BATCH = 64


def prepare(folder: Path, size: Mapping[str, Any]) -> None:
    """Write the same samples twice: flat int32 with offsets, and records. Lengths are lognormal, mean about 400."""
    import thalweg as tw

    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(5.6, 0.9, size["samples"]), 16, 4096).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    tokens = rng.integers(1, 50_000, offsets[-1], dtype=np.int32)
    np.save(folder / "offsets.npy", offsets)
    tokens.tofile(folder / "tokens.bin")
    with tw.create_records(str(folder / "records"), overwrite=True) as writer:
        for a, b in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
            writer.write({"input_ids": tokens[a:b], "loss_spans": np.array([[0, b - a]], np.int32)})


def _take(batches: Any) -> tuple[int, int, int]:
    """Read an epoch: rows of the input, sum of ids, sum of labels in the loss."""
    samples = ids = labels = 0
    for batch in batches:
        mask = batch.get("attention_mask")
        samples += int((batch["position_ids"] == 0).sum() if mask is None else (mask[:, 0] > 0).sum())
        ids += int(batch["input_ids"].sum())
        labels += int(batch["labels"][batch["labels"] != -100].sum())
    return samples, ids, labels


def ours(padding: str) -> Any:
    """Our loader; padding "right" or "none"."""

    def start(folder: Path, _size: Mapping[str, Any]) -> Work:
        import thalweg as tw

        feed = tw.from_records(str(folder / "records")).shuffle().batch(BATCH, pad=padding)
        loader = tw.Loader(feed, seed=0, tail="pad", return_tensors="pt")
        return Work(
            lambda: sum(batch.info.weight.sum() > 0 and _rows(batch) for batch in loader), lambda: _take(loader)
        )

    return start


def _rows(batch: Any) -> int:
    return len([i for row in batch.info.ids for i in row])


def torch_loader(padding: str) -> Any:
    """What people write with torch: a map-style data set over the mapped file, and a collate function."""

    def start(folder: Path, _size: Mapping[str, Any]) -> Work:
        import torch
        from torch.utils.data import DataLoader, Dataset

        offsets = np.load(folder / "offsets.npy", mmap_mode="r")
        mapped = np.memmap(folder / "tokens.bin", dtype=np.int32, mode="r")

        class Tokens(Dataset[Any]):
            def __len__(self) -> int:
                return len(offsets) - 1

            def __getitem__(self, i: int) -> Any:
                return torch.from_numpy(mapped[offsets[i] : offsets[i + 1]].astype(np.int64))

        def padded(rows: list[Any]) -> dict[str, Any]:
            ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
            lengths = torch.tensor([len(row) for row in rows])
            mask = torch.arange(ids.shape[1])[None] < lengths[:, None]
            labels = ids.masked_fill(~mask, -100)
            labels[:, 0] = -100
            return {"input_ids": ids, "labels": labels, "attention_mask": mask.long(), "n": len(rows)}

        def flat(rows: list[Any]) -> dict[str, Any]:
            ids = torch.cat(rows)
            lengths = torch.tensor([len(row) for row in rows])
            ends = torch.cumsum(lengths, 0)
            positions = torch.arange(len(ids)) - torch.repeat_interleave(ends - lengths, lengths)
            labels = ids.masked_fill(positions == 0, -100)
            parts = torch.nn.functional.pad(ends, (1, 0)).int()
            return {
                "input_ids": ids[None],
                "labels": labels[None],
                "position_ids": positions[None],
                "cu_seq_lens_q": parts,
                "cu_seq_lens_k": parts,
                "n": len(rows),
            }

        draws = torch.Generator().manual_seed(0)
        collate = padded if padding == "right" else flat
        loader = DataLoader(Tokens(), BATCH, shuffle=True, collate_fn=collate, generator=draws)
        return Work(lambda: sum(batch["n"] for batch in loader), lambda: _take(loader))

    return start


CASES = [
    Case(
        name=f"token feed, batch {BATCH}, {words}",
        unit="samples",
        prepare=prepare,
        sides={"thalweg": Side(ours(padding)), "torch DataLoader": Side(torch_loader(padding), TORCH)},
        sizes={"full": {"samples": 200_000}, "smoke": {"samples": 500}},
        warmup=1,
    )
    for padding, words in (("right", "padded"), ("none", "one flat row"))
]

if __name__ == "__main__":
    main(__file__, CASES)
