"""torchtitan: a feed behind its loader protocol.

torchtitan builds its loader from a config and takes ({"input", "positions"}, labels shifted); it keeps the place in
its distributed checkpoint. Decides how those words become a loader's. Knows no model.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torchtitan.components.dataloader import BaseDataLoader

from thalweg.bind.loader import Loader
from thalweg.core.errors import ConfigError
from thalweg.core.topology import Topology
from thalweg.feed import stages as st
from thalweg.feed.feed import Feed

__all__ = ["FeedDataLoader"]


class FeedDataLoader(BaseDataLoader):  # type: ignore[misc]  # pyright: ignore[reportUntypedBaseClass]
    """A loader that torchtitan's trainer builds: `config.dataloader = FeedDataLoader.Config(feed=feed)`.

    Args:
        config: `feed`, a feed without `.batch`, or a function (tokenizer, seq_len) -> feed; `seed`; `workers`.
        dp_world_size: data-parallel ranks.
        dp_rank: of this process.
        tokenizer: of the job, for a function.
        seq_len: tokens of a row, which the feed's `.pack` must say too.
        local_batch_size: rows of a rank.
        runtime: what torchtitan tells further, unused.

    Raises:
        ConfigError: rows of another length, or a feed that batches itself.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):  # type: ignore[misc]  # pyright: ignore[reportUntypedBaseClass]
        """Words of the loader."""

        feed: Feed | Callable[[Any, int], Feed] | None = None
        seed: int = 0
        workers: int | str = "auto"

    def __init__(
        self,
        config: Config,
        *,
        dp_world_size: int,
        dp_rank: int,
        tokenizer: Any = None,
        seq_len: int,
        local_batch_size: int,
        **runtime: Any,
    ) -> None:
        del runtime
        feed = config.feed if isinstance(config.feed, Feed) or config.feed is None else config.feed(tokenizer, seq_len)
        if feed is None:
            raise ConfigError("no feed is said", where="FeedDataLoader.Config", fix="Config(feed=...)")
        pack = next((s for s in feed.stages if isinstance(s, st.Pack)), None)
        if pack is None or pack.capacity != seq_len or isinstance(feed.stages[-1], st.BATCHING):
            raise ConfigError(
                f"the job has seq_len={seq_len} and local_batch_size={local_batch_size}, the feed ends in "
                f"{feed.stages[-1]}", where="FeedDataLoader", fix=f".pack({seq_len}) as its last stage",
            )  # fmt: skip
        self.loader = Loader(
            feed.batch(local_batch_size, collate="torchtitan"),
            topology=Topology(dp_rank, dp_world_size), epochs=None, seed=config.seed, workers=config.workers,
        )  # fmt: skip

    def __iter__(self) -> Iterator[tuple[dict[str, Any], Any]]:
        """Give ({"input": (B, L), "positions": (B, L)}, labels (B, L) shifted), int64, without end."""
        for batch in self.loader:
            labels = batch.pop("labels")
            yield dict(batch), labels

    def state_dict(self) -> dict[str, str]:
        """Give the place: flat, with constant keys, as torchtitan's checkpoint wants it."""
        return self.loader.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a place, on any number of ranks; an empty state changes nothing."""
        if state_dict:
            self.loader.load_state_dict(state_dict)
