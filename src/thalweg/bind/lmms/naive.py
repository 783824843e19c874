"""`MultiModalDataset`: samples counted truly, packed once, and given by number.

Decides the order (a seeded permutation), what is too long, and the rows of both strategies. Encoding and decoding are
those of the streaming dataset.
"""

import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset

from thalweg.bind.lmms.batches import EngineCollator, Processing, collator
from thalweg.bind.lmms.config import DatasetConfig
from thalweg.bind.lmms.formats import Rows, fingerprint, open_rows
from thalweg.bind.lmms.processors import encoder_of
from thalweg.core.errors import BudgetError, ConfigError, InputError
from thalweg.core.seeds import generator
from thalweg.core.state import digest
from thalweg.encode.errors import EncodeError
from thalweg.encode.tokens import cache_folder
from thalweg.plan.pack_fit import first_fit

Ints = NDArray[np.int64]


def packs(lengths: NDArray[np.int32], order: Ints, capacity: int, window: int | None, seed: int) -> list[Ints]:
    """Pack samples, none longer than a row.

    Args:
        lengths: int32 (n,) tokens of every sample.
        order: int64 (k,) the samples that are packed, shuffled.
        capacity: tokens of a row.
        window: None: first fit, in that order. A number: all sorted by length, longest first, first fit inside
            consecutive windows of so many samples, and the rows in a seeded permutation.
        seed: of that permutation.

    Returns:
        Samples of each row.
    """
    if window is None:
        rows = first_fit(lengths[order], capacity)
        return [order[rows[i]] for i in range(len(rows))]
    ranked = order[np.argsort(-lengths[order].astype(np.int64), kind="stable")]
    out: list[Ints] = []
    for start in range(0, len(ranked), window):
        part = ranked[start : start + window]
        rows = first_fit(lengths[part], capacity)
        out += [part[rows[i]] for i in range(len(rows))]
    return [out[i] for i in generator("window", seed).permutation(len(out))]


class MultiModalDataset(Dataset[Any]):  # type: ignore[misc]
    """Samples, or rows of samples, by number. `build()` before the first use.

    Args:
        config: what is read and how it is packed.

    Attributes:
        counts: samples left out, by reason.
    """

    def __init__(self, config: DatasetConfig) -> None:
        self.config = config
        self.counts: Counter[str] = Counter()
        self._rows: Rows | None = None
        self._encoder: Any = None
        self._lengths: NDArray[np.int32] = np.empty(0, np.int32)
        self._items: list[Ints] = []

    def build(self) -> None:
        """Open the data, count the tokens of every sample (kept for the next start), and lay the rows out.

        Raises:
            InputError: nothing is there, or no sample is left.
            BudgetError: more records than `max_bad` cannot be encoded; the first is named with its reason.
            ConfigError: a type, processor or format that cannot be.
        """
        config = self.config
        self._encoder, self._rows = encoder_of(config), open_rows(config)
        self._lengths = self._counted()
        order = np.arange(len(self._rows))
        if config.shuffle:
            order = generator("lmms", config.data_seed).permutation(len(order))
        order = order[self._lengths[order] >= 0]
        long = self._lengths[order] > config.longest
        alone = np.empty(0, np.int64)
        if long.any() and (config.filter_overlong and (config.packing or config.max_length)):
            self.counts["longer than a row"] = int(long.sum())
            order = order[~long]
        elif config.packing:
            alone, order = order[long], order[~long]
        if config.packing:
            rows = packs(self._lengths, order, config.packing_length, config.window, config.data_seed)
            self._items = [*rows, *(alone[i : i + 1] for i in range(len(alone)))]
        else:
            self._items = [order[i : i + 1] for i in range(len(order))]
        if not self._items:
            raise InputError(
                f"no sample is left of {len(self._rows)}: {dict(self.counts)}", where=str(config.dataset_path)
            )

    def _counted(self) -> NDArray[np.int32]:
        """Count tokens, -1 for a record that no rule accepts; from the cache folder where they were counted before."""
        rows, encoder = self._built()
        key = digest([fingerprint(rows), getattr(encoder, "fingerprint", None) or f"{encoder!r} {self.config!r}"])
        file = cache_folder() / "lmms" / f"{key}.npy"
        if file.is_file():
            lengths: NDArray[np.int32] = np.load(file)
        else:
            with ThreadPoolExecutor(self.config.filter_overlong_workers, thread_name_prefix="thalweg-lmms") as pool:
                lengths = np.fromiter(pool.map(self._length, range(len(rows))), np.int32, len(rows))
            file.parent.mkdir(parents=True, exist_ok=True)
            made = file.with_suffix(f".{id(self)}.npy")
            np.save(made, lengths)
            made.replace(file)
        bad, limit = int((lengths < 0).sum()), self.config.max_bad
        if bad > (limit if isinstance(limit, int) else limit * max(len(rows), 100)):
            raise BudgetError(
                f"{bad} of {len(rows)} records cannot be encoded, more than max_bad={limit} allows; the first is record"
                f" {int(np.argmax(lengths < 0))}: {self._reason(int(np.argmax(lengths < 0)))}",
                where=str(self.config.dataset_path), fix='repair them, or extra_kwargs={"max_bad": ...}',
            )  # fmt: skip
        if bad:
            self.counts["not encodable"] = bad
            warnings.warn(f"{bad} of {len(rows)} records cannot be encoded and are left out", UserWarning, stacklevel=4)
        return lengths

    def _length(self, index: int) -> int:
        rows, encoder = self._built()
        try:
            made = encoder(rows[index])
        except EncodeError:
            return -1
        return -1 if made is None else len(made["input_ids"])

    def _reason(self, index: int) -> str:
        rows, encoder = self._built()
        try:
            made = encoder(rows[index])
        except EncodeError as error:
            return str(error)
        return "there is no text in it" if made is None else "its record changed"

    def _built(self) -> tuple[Rows, Any]:
        if self._rows is None:
            raise ConfigError("the dataset is not built", where=type(self).__name__, fix="dataset.build() first")
        return self._rows, self._encoder

    def __len__(self) -> int:
        self._built()
        return len(self._items)

    def __getitem__(self, index: int) -> Any:
        """Give the samples of one row, or one sample where nothing is packed."""
        rows, encoder = self._built()
        if not -len(self._items) <= index < len(self._items):
            raise IndexError(f"item {index} of {len(self._items)}")
        samples = [encoder(rows[int(i)]) for i in self._items[index]]
        return samples if self.config.packing else samples[0]

    @property
    def modality_length(self) -> list[int]:
        """Tokens of each item, for samplers that group by length."""
        self._built()
        return [int(self._lengths[item].sum()) for item in self._items]

    @property
    def indices(self) -> list[list[int]]:
        """Numbers of the records of each item."""
        self._built()
        return [item.tolist() for item in self._items]

    @property
    def processor(self) -> Processing:
        """What the trainer saves beside a checkpoint."""
        return Processing(self._built()[1])

    def get_collator(self) -> EngineCollator:
        """Give what makes a batch of items."""
        _, encoder = self._built()
        return collator(encoder, packed=self.config.packing)

    def estimated_memory(self) -> dict[str, float]:
        """Give two figures in bytes: all samples and a fifth more, and one row of the streaming dataset."""
        self._built()
        kept = self._lengths[self._lengths >= 0]
        mean = float(kept.mean()) * (4 + 8) if len(kept) else 0.0  # ids int32 and labels int64
        return {"naive": len(kept) * mean * 1.2, "streaming": float(self.config.packing_length * (4 + 8))}
