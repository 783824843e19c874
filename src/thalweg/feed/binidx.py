"""Megatron's .bin/.idx as a source, and its lists of weights and prefixes as a mix.

Decides that each sequence of a pair is a sample, and what a blend list means. How the files are laid out is
`store.formats.megatron`.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.core.errors import ConfigError
from thalweg.core.sample import INPUT_IDS
from thalweg.core.state import digest
from thalweg.feed.feed import Feed
from thalweg.feed.join import mix
from thalweg.feed.source import Columns, hash_ids
from thalweg.feed.stages import From
from thalweg.feed.views import tokens_at
from thalweg.store.formats.megatron import Indexed, prefix_of
from thalweg.store.records.token_ids import Places

_SAMPLED = 64  # sequences whose tokens are in the fingerprint


class MegatronSource:
    """The sequences of one pair, by number.

    Args:
        prefix: path without .bin and .idx.
        vocab_size: of the tokenizer that wrote it, for those who ask; None where it is unknown.

    Raises:
        InputError: no such pair, another format, or a .bin of another size.
    """

    ours = True  # no code of the user's is run when it is read, so any thread may

    def __init__(self, prefix: str, vocab_size: int | None = None) -> None:
        self.pair, self._vocab_size = Indexed(prefix), vocab_size
        self._fingerprint: str | None = None

    def __len__(self) -> int:
        """Count the sequences."""
        return len(self.pair)

    @property
    def lengths(self) -> NDArray[np.int32]:
        """Token counts of the index."""
        return self.pair.lengths

    @property
    def facts(self) -> Mapping[str, NDArray[Any]]:
        """Only the lengths: every token but a sequence's first is in the loss."""
        return {"length": self.pair.lengths}

    @property
    def fingerprint(self) -> str:
        """Hash of all lengths and of the tokens of at most 64 sequences spread over the data."""
        if self._fingerprint is None:
            n = len(self)
            picks = sorted({int(i) for i in np.linspace(0, n - 1, _SAMPLED)}) if n else []
            tokens = [digest(self.pair[i].tolist()) for i in picks]
            lengths = hash_ids([np.ascontiguousarray(self.pair.lengths).tobytes().hex()])
            self._fingerprint = "megatron-" + digest([n, str(int(lengths[0])), tokens])
        return self._fingerprint

    @property
    def columns(self) -> tuple[str, ...]:
        """Tokens alone."""
        return (INPUT_IDS,)

    @property
    def lineage(self) -> Mapping[str, Any]:
        """Nothing is recorded but what the user said."""
        return {} if self._vocab_size is None else {"vocab_size": self._vocab_size}

    def read(self, indices: NDArray[np.int64], columns: Sequence[str] | None = None) -> Columns:
        """Gather sequences in the order asked, int32."""
        if columns is not None and INPUT_IDS not in columns:
            return {}
        return {INPUT_IDS: tokens_at(self.token_places(indices))}

    def token_places(self, indices: NDArray[np.int64], together: int = 1) -> Places:
        """Say where the tokens of sequences lie in memory, for one copy out of many pairs."""
        del together
        pair = self.pair
        start = pair.data.__array_interface__["data"][0]
        return Places(start + pair.pointers[indices], pair.lengths[indices], pair.dtype.name)

    def ids(self, indices: NDArray[np.int64]) -> list[str]:
        """Give the number of each sequence."""
        return [str(i) for i in indices.tolist()]

    def id_hashes(self, indices: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Hash those numbers."""
        return hash_ids(self.ids(indices))


def from_megatron(data: Any, *, vocab_size: int | None = None) -> Feed:
    """Feed Megatron's .bin/.idx as they are: each sequence is a sample, and all but its first token is in the loss.

    Args:
        data: the prefix of a pair, or a blend list as `--data-path` takes it: ["0.7", "web", "0.3", "code"], or
            several prefixes without weights, which are then weighed by their tokens.
        vocab_size: of the tokenizer that wrote it, where its checks are wanted.

    A blend is a `mix` by tokens: an epoch ends with the first source that is used up.

    Raises:
        InputError: a pair that is missing, cut short or of another format.
        ConfigError: a list that is no blend, or names a prefix twice.
    """
    if isinstance(data, str | os.PathLike):
        parts = str(data).split()
        if len(parts) < 2 or os.path.exists(f"{data}.idx"):  # noqa: PTH110  (a prefix is no path)
            return _one(prefix_of(str(data)), vocab_size)
        data = parts
    items = [str(item) for item in data]
    weights, prefixes = _blend(items)
    feeds = {prefix: _one(prefix_of(prefix), vocab_size) for prefix in prefixes}
    if len(feeds) != len(prefixes):
        raise ConfigError("a prefix is twice in the blend", where="from_megatron", fix="add its weights up")
    if len(prefixes) == 1:
        return feeds[prefixes[0]]
    if weights is None:
        sources: list[Any] = [f.stages[0] for f in feeds.values()]
        weights = [float(s.source.lengths.sum(dtype=np.int64)) for s in sources]
    return mix(feeds, weights=dict(zip(prefixes, weights, strict=True)), by="tokens")


def _blend(items: list[str]) -> tuple[list[float] | None, list[str]]:
    """Read a blend list: (weights, prefixes); weights are None where there are none."""
    if not items:
        raise ConfigError("an empty blend list", where="from_megatron", fix='["0.7", "web", "0.3", "code"]')
    numbers = [_number(item) for item in items[::2]]
    if len(items) % 2 == 0 and all(n is not None for n in numbers):
        return [n for n in numbers if n is not None], items[1::2]
    if any(_number(item) is not None for item in items):
        raise ConfigError(
            f"{' '.join(items[:6])} is no blend", where="from_megatron",
            fix='a weight before each prefix, ["0.7", "web", "0.3", "code"], or prefixes alone',
        )  # fmt: skip
    return None, items


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _one(prefix: str, vocab_size: int | None) -> Feed:
    given = {"data": prefix} if vocab_size is None else {"data": prefix, "vocab_size": vocab_size}
    return Feed((From(MegatronSource(prefix, vocab_size), prefix, "from_megatron", given),))
