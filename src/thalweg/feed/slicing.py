"""What a context-parallel rank gets of the rows that all ranks of its group share: a slice, or the whole.

Decides when rows can be cut, before any is read, and how wide rows without a fixed width are made so that the cut
fits. The places of a slice are those of `plan.slices`. Knows no plan and no step.
"""

from dataclasses import dataclass
from math import lcm
from typing import Any, cast, get_args

from thalweg.core.errors import ConfigError, nearest
from thalweg.core.topology import Topology
from thalweg.feed import stages as st
from thalweg.feed.collating import batching_of
from thalweg.feed.feed import Feed
from thalweg.plan.rows import RowArrays
from thalweg.plan.slices import SliceLayout, cut


@dataclass(frozen=True, slots=True)
class Slicing:
    """The slice of one context-parallel rank.

    Args:
        rank: 0 <= rank < size.
        size: context-parallel ranks, at least 2.
        layout: "zigzag" (of each document), "zigzag_row" or "contiguous".
    """

    rank: int
    size: int
    layout: SliceLayout

    @property
    def chunks(self) -> int:
        """Count the equal chunks that a document or row is cut into."""
        return self.size if self.layout == "contiguous" else 2 * self.size

    def __call__(self, rows: RowArrays) -> RowArrays:
        """Give this rank's slice of rows."""
        return cut(rows, self.rank, self.size, self.layout)

    def multiple(self, stage: Any, pack: st.Pack | None) -> int:
        """Give what the width of rows is a multiple of: the stage's, and that of the cut where no capacity rules."""
        given = int(stage.pad_to_multiple_of)
        free = pack is None or stage.pad == "none"
        return lcm(given, self.chunks) if free else given


def slicing_of(feed: Feed, topology: Topology, layout: str | None) -> Slicing | None:
    """Say how the rows of a feed are cut for a place in the job, as `slicing` does."""
    batch = batching_of(feed)
    return slicing(
        topology,
        layout,
        st.Batch(1) if batch is None else batch,
        next((s for s in feed.stages if isinstance(s, st.Pack)), None),
    )


def slicing(topology: Topology, layout: str | None, stage: Any, pack: st.Pack | None) -> Slicing | None:
    """Say how rows are cut for a place in the job; None where they stay whole.

    Args:
        topology: the place; one context-parallel rank has whole rows.
        layout: as `Loader(cp_layout=...)`; None: whole rows, for trainers that cut them.
        stage: the batching stage.
        pack: the packing stage, None where a row is one sample.

    Raises:
        ConfigError: an unknown layout, or rows that can't be cut by it.
    """
    if layout is not None and layout not in get_args(SliceLayout):
        raise ConfigError(
            f"cp_layout={layout!r} is unknown", where="Loader", fix=nearest(layout, [*get_args(SliceLayout), "None"])
        )
    if topology.cp_size == 1 or layout is None:
        return None
    out = Slicing(topology.cp_rank, topology.cp_size, cast("SliceLayout", layout))
    whole = "cp_layout=None gives every rank the whole rows, for a trainer that cuts them itself"
    if callable(stage.collate) or stage.collate in {"raw", "hf_mamba", "varlen"}:
        raise ConfigError(
            f"batches of collate={st.describe(stage.collate)} can't be cut for {out.size} context-parallel ranks",
            where="Loader", fix=whole,
        )  # fmt: skip
    capacities = () if pack is None or stage.pad == "none" else pack.capacities
    if out.layout == "zigzag" and pack is not None and pack.align % out.chunks:
        raise ConfigError(
            f"{out.chunks} chunks of each document need documents aligned to them, and align is {pack.align}",
            where="Loader", fix=f"pack(..., align={lcm(pack.align, out.chunks)}), or cp_layout='zigzag_row'; {whole}",
        )  # fmt: skip
    wrong = next((c for c in capacities if c % out.chunks), None)
    if wrong is not None:
        raise ConfigError(
            f"rows of {wrong:,} tokens can't be cut into {out.chunks} equal chunks", where="Loader",
            fix=f"pack into rows of {-(-wrong // out.chunks) * out.chunks:,}; {whole}",
        )  # fmt: skip
    return out
