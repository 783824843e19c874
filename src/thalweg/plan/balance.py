"""Equal work for all ranks of a step: the order of rows in windows, and which rank takes which row of a step.

Two levels. In the plan, which no rank or world size enters: windows of W rows are sorted by cost, cut into runs of R
rows, and the runs are spread by the seed, so the rows of a step cost about the same. In a step: the costliest row
goes first, to the rank with the least cost so far that has a free place. Adds and loses no row. Knows no tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from thalweg.core.errors import ConfigError
from thalweg.core.seeds import Key, generator
from thalweg.plan.pack_rows import Ints

Costs = NDArray[np.float64]

# Runs of a window where nothing is said. At 131,072 tokens and 64 ranks (lognormal lengths, mean 4,000, sigma 1.5)
# the mean of max/mean cost is 3.09 in random order, 1.13 with 8 runs, 1.06 with 16, 1.03 with 32 and 1.015 with 64.
WINDOW_RUNS = 32


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of a document of n tokens: a * n + b * n^2. The default counts tokens.

    Args:
        a: cost of a token in matrices, 0 or more.
        b: cost of a pair of tokens in attention, 0 or more.
    """

    a: float = 1.0
    b: float = 0.0

    @classmethod
    def of_model(cls, config: Mapping[str, Any]) -> "Cost":
        """Count operations of a forward pass from a model's configuration (decoder with causal attention).

        For each token two operations a parameter (q, k, v and output projections, a gated MLP of three matrices, the
        output layer); for each pair of tokens under the causal mask four operations a channel and layer: scores and
        weighted values. n tokens have n^2 / 2 pairs. Source: Kaplan et al. 2020 (arXiv:2001.08361), table 1.

        Args:
            config: hidden_size, num_hidden_layers, num_attention_heads; optional intermediate_size,
                num_key_value_heads, head_dim, vocab_size, num_experts_per_tok with moe_intermediate_size.

        Raises:
            ConfigError: a size is missing.
        """
        try:
            hidden, layers, heads = (config[k] for k in ("hidden_size", "num_hidden_layers", "num_attention_heads"))
        except KeyError as error:
            raise ConfigError(
                f"the model's configuration has no {error.args[0]!r}", fix="give a and b yourself"
            ) from error
        width = heads * (config.get("head_dim") or hidden // heads)
        keys = width * (config.get("num_key_value_heads") or heads) // heads
        experts = config.get("num_experts_per_tok")
        inner = config.get("intermediate_size") or 4 * hidden
        if experts:
            inner = experts * (config.get("moe_intermediate_size") or inner)
        parameters = layers * (2 * hidden * width + 2 * hidden * keys + 3 * hidden * inner)
        parameters += hidden * config.get("vocab_size", 0)
        return cls(2.0 * parameters, 2.0 * width * layers)  # n^2 / 2 pairs under the mask, 4 operations each

    def documents(self, lengths: ArrayLike) -> Costs:
        """Give the cost of documents of `lengths` tokens, float64 (n,)."""
        n = np.asarray(lengths, np.float64)
        return self.a * n + self.b * n * n

    def rows(self, lengths: ArrayLike, offsets: Ints) -> Costs:
        """Give the cost of rows: the sum over their documents, which do not attend to each other.

        Args:
            lengths: int (n,), tokens of each document (or piece), row after row.
            offsets: int64 (r + 1,), documents of each row.
        """
        total = np.zeros(offsets[-1] + 1)
        np.cumsum(self.documents(lengths), out=total[1:])
        return np.diff(total[offsets])


def order_rows(costs: ArrayLike, before: int, window: int, run: int, *key: Key) -> Ints:
    """Put the rows of a block into their balanced order.

    Args:
        costs: float (r,), cost of each row of the block, in the plan's order.
        before: rows of the epoch (with tail "carry": of the run) before the block.
        window: W, rows sorted by cost together; a multiple of `run`.
        run: R, rows that stay together; runs end where the number of rows before is a multiple of it.
        key: seeds the order of runs, with the number of the window: (seed, epoch, block, ...).

    Returns:
        int64 (r,), a permutation of the block's rows. Pieces shorter than a run stay where they are at its ends.

    Raises:
        ConfigError: the window is not a multiple of the run.
    """
    if run < 1 or window < run or window % run:
        raise ConfigError(
            f"window {window} must be a multiple of run {run}", fix=f"say window={WINDOW_RUNS * max(run, 1)}"
        )
    cost = np.asarray(costs, np.float64)
    n = len(cost)
    order = np.arange(n)
    start = min(-before % run, n)
    for number, first in enumerate(range(start, n - run + 1, window)):
        size = min(window, n - first) // run * run
        inside = first + np.argsort(cost[first : first + size], kind="stable")
        runs = spread(size // run, "balance", number, *key)
        order[first : first + size] = inside.reshape(-1, run)[runs].reshape(-1)
    return order


def spread(n: int, *key: Key) -> Ints:
    """Give a seeded permutation of 0..n-1 of which any stretch is spread over the whole range.

    Multiples of the golden ratio from a seeded start, ranked. Runs sorted by cost are sorted by source too where
    sources differ in length; in this order the share of a source in any 10 M tokens stays within 3 standard errors
    for runs of 65 k tokens (6 for runs of 262 k), for windows of any size. In random order it is 5 at windows of 1 M
    tokens, 8 at 2 M and 11 at 8 M (two sources, means 200 and 2,500, half the tokens each, rows of 4,096).

    Args:
        n: length.
        key: seeds the start.
    """
    at = (np.arange(n) * ((5**0.5 - 1) / 2) + generator(*key).random()) % 1.0
    out = np.empty(n, np.int64)
    out[np.argsort(at, kind="stable")] = np.arange(n)
    return out


def deal(costs: ArrayLike, world: int, micro: int, accumulation: int = 1) -> Ints:
    """Give the rows of one step to its ranks.

    Args:
        costs: float (world * micro * accumulation,), cost of each row of the step, in order.
        world: number of ranks.
        micro: rows of a rank in a micro-batch.
        accumulation: micro-batches of a step.

    Returns:
        int64 (accumulation, world, micro), numbers of rows; micro-batch m has the m-th range of world * micro rows.
        The costliest row goes first, to the rank with the least cost in the step so far; ties go to the lower rank.
    """
    cost = np.asarray(costs, np.float64).reshape(accumulation, world * micro)
    out = np.empty((accumulation, world, micro), np.int64)
    load = [0.0] * world
    for m in range(accumulation):
        falling = np.argsort(-cost[m], kind="stable").tolist()
        if micro == 1:  # each rank takes one: the least loaded the costliest
            ranks = sorted(range(world), key=lambda w: (load[w], w))
            out[m, ranks, 0] = np.add(falling, m * world)
            for w, i in zip(ranks, falling, strict=True):
                load[w] += cost[m, i]
            continue
        held = [0] * world
        for i in falling:
            w = min((w for w in range(world) if held[w] < micro), key=lambda w: (load[w], w))
            out[m, w, held[w]] = m * world * micro + i
            held[w] += 1
            load[w] += cost[m, i]
    return out


def straggler(costs: ArrayLike, dealt: Ints) -> float:
    """Give the cost of the busiest rank of a step over the mean of all: 1.0 where all take the same time.

    Args:
        costs: float (rows of the step,).
        dealt: int64 (accumulation, world, micro), as `deal` gives it.
    """
    load = np.asarray(costs, np.float64)[dealt].sum(axis=(0, 2))
    mean = float(load.mean())
    return float(load.max()) / mean if mean else 1.0


def stragglers(costs: ArrayLike, world: int, micro: int = 1, accumulation: int = 1) -> Costs:
    """Give the straggler factor of each whole step of rows in order, float64 (steps,)."""
    cost = np.asarray(costs, np.float64)
    size = world * micro * accumulation
    steps = cost[: len(cost) // size * size].reshape(-1, size)
    return np.array([straggler(step, deal(step, world, micro, accumulation)) for step in steps])
