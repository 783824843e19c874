"""The feed: a frozen, printable description of what a training job reads, in which order.

Decides the words that users type and what each remembers. Opens sources (so that a wrong path or column is said at
once), and else runs nothing: `feed.loader` runs a feed, `feed.look` looks into it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NoReturn

from thalweg.core.errors import ConfigError
from thalweg.feed import losscount, rules
from thalweg.feed import stages as st
from thalweg.plan.shuffle import WINDOW


@dataclass(frozen=True, eq=False, repr=False)
class Feed:
    """A sequence of stages. Every verb gives a new feed; nothing is read before a loader or a look asks.

    `kind` is "planned" (lengths known: rows countable, elastic, resume in constant time) or "stream" (ordered,
    bounded, no length); `why` names the stage that made it a stream, None when planned.
    """

    stages: tuple[st.Stage, ...]

    def __post_init__(self) -> None:
        """Refuse what cannot be right, while the line that wrote it is on the stack."""
        rules.check(self.stages)

    @property
    def kind(self) -> str:
        """Say "planned" or "stream"."""
        return rules.kind_of(self.stages)[0]

    @property
    def why(self) -> str | None:
        """Name the stage that makes the feed a stream."""
        return rules.kind_of(self.stages)[1]

    @property
    def num_rows(self) -> int:
        """Count the rows of the first epoch (packs are planned for it, once, and kept).

        Raises:
            ConfigError: the feed is a stream.
        """
        count: int = import_module("thalweg.feed.look").count_rows(self)
        return count

    @property
    def fingerprint(self) -> str:
        """Identity of data and order: what a state must agree with. Never workers, paths or clocks."""
        found: str = import_module("thalweg.feed.identity").fingerprint(self)
        return found

    def _then(self, stage: st.Stage) -> "Feed":
        return Feed((*self.stages, stage))

    # ---- which samples

    def take(self, n: int) -> "Feed":
        """Keep the first n samples of the source."""
        return self._then(st.Take(n))

    def skip(self, n: int) -> "Feed":
        """Leave out the first n samples of the source."""
        return self._then(st.Skip(n))

    def select(self, indices: Sequence[int] | Any) -> "Feed":
        """Keep these samples, in this order. Indices may repeat; negative ones are refused when opened."""
        return self._then(st.Select(indices))

    def repeat(self, n: int) -> "Feed":
        """Upsample: n times, inside `concat` or `mix`. For the whole feed say `Loader(epochs=n)`."""
        return self._then(st.Repeat(n))

    def split(self, shares: Mapping[str, float], *, seed: int = 0) -> dict[str, "Feed"]:
        """Divide by a hash of each sample's id: a sample stays on its side when data is appended.

        Args:
            shares: name -> share; shares of at most 1 in sum, what is left belongs to no part.
            seed: another seed, another division.
        """
        if not isinstance(shares, Mapping) or not shares:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError("split takes names and shares", where="split", fix='{"train": 0.99, "val": 0.01}')
        typed, depth = tuple(shares.items()), st.splits_of(self.stages)
        return {name: self._then(st.Split(typed, name, seed, depth)) for name in shares}

    def filter(self, fn: Callable[..., Any], columns: Any = None, *, with_info: bool = False) -> "Feed":
        """Keep the samples for which fn is true.

        Args:
            fn: fn(sample) -> bool; with `columns`, fn(*arrays) -> bool (n,) over those table columns at once.
            columns: names of table columns ("length", "label_tokens", ...): no sample is read then.
            with_info: fn(sample, info), with info.rng for a seeded random filter.

        On a planned feed fn is run once over the data and its keep bits are cached; the count is then known.
        """
        return self._then(st.Filter(fn, columns, with_info))

    # ---- order

    def shuffle(self, seed: int | None = None, *, buffer_size: int = 10_000, locality: int | None = None) -> "Feed":
        """Permute anew in each epoch; a stream shuffles in a seeded window.

        Args:
            seed: None takes the loader's.
            buffer_size: samples of a window, streams only.
            locality: rows of a block that stay near each other, for remote shards; None permutes all freely.
        """
        return self._then(st.Shuffle(seed, buffer_size, locality))

    # ---- samples to samples

    def map(
        self,
        fn: Callable[..., Any],
        *,
        batched: bool | int = False,
        with_info: bool = False,
        remove_columns: Any = None,
        workers: int | str = "auto",
        mode: str = "auto",
        on_error: str = "raise",
        max_bad: float = 0.01,
        quarantine: str | None = None,
        timeout: float | None = None,
        input_columns: Any = None,
        output_columns: Any = None,
        length: str | None = None,
        ahead: int | None = None,
    ) -> "Feed":
        """Apply fn to each sample: the columns that it returns are set, the others stay.

        Args:
            fn: fn(sample) -> dict, None (dropped, counted), or a list of dicts (streams, or before `.cache()`).
            batched: True or a number: fn({column: [values]}) -> {column: [values]}, up to that many a call (256).
            with_info: fn(sample, info): info.id, .source, .index, .epoch, .rng.
            remove_columns: names, or "all". None: none, but all for an encoder, which returns the whole sample
                (it says `whole_sample = True`).
            workers: threads or processes; "auto" decides by measurement.
            mode: "auto" | "inline" | "threads" | "processes".
            on_error: "raise" | "skip" | "quarantine".
            max_bad: share (float) or number (int) of samples that may fail.
            quarantine: path for failed rows.
            timeout: seconds a call may take.
            input_columns: fn gets these by position.
            output_columns: what fn returns, by position or name.
            length: "same" promises unchanged token counts; checked when run.
            ahead: streams: samples in flight, from read to hand-over; None: 128, at least 4 a worker.
        """
        if remove_columns is None and getattr(fn, "whole_sample", False):
            remove_columns = "all"
        return self._then(
            st.Map(
                fn,
                batched,
                with_info,
                remove_columns,
                input_columns,
                output_columns,
                workers,
                mode,
                on_error,
                max_bad,
                quarantine,
                timeout,
                length,
                ahead,
            )
        )

    def cache(
        self,
        path: str | None = None,
        *,
        what: str = "samples",
        scope: str = "node",
        max_bytes: int | str | None = None,
    ) -> "Feed":
        """Run what precedes once, shared by the ranks, resumable; lengths are known from here on.

        Args:
            path: folder; None takes the user's cache folder, keyed by data, code and tokenizer.
            what: "samples", or "lengths" to keep only counts and map again when read.
            scope: "node": one result a machine; "shared": one for all, below a `path` that all see; "rank": each rank
                keeps a share of its own, 1/world of the work and the memory, and reads no other.
            max_bytes: hold the samples in memory instead, at most so many bytes ("2GB"), as long as the feed lives.
        """
        return self._then(st.Cache(path, what, scope, max_bytes))

    # ---- samples to rows and batches

    def pack(
        self,
        capacity: int | Sequence[int],
        *,
        policy: str = "best_fit",
        overlong: str | None = None,
        align: int = 1,
        max_docs: int | None = None,
        repack: str = "epoch",
    ) -> "Feed":
        """Put samples into rows of at most `capacity` tokens.

        Args:
            capacity: tokens of a row; several row lengths, such as (4096, 32768), give each row the one it needs.
            policy: "best_fit" | "fill" | "auto" | "first_fit" | "next_fit" | "window_N" | "concat_split".
            overlong: "drop" | "truncate" | "split" | "alone" | "error"; None refuses with counts where one is too long.
            align: every document starts at a multiple of it.
            max_docs: documents of a row at most.
            repack: "epoch" packs anew in each epoch; "never" keeps the rows and permutes them.
        """
        return self._then(st.Pack(st.row_lengths(capacity), policy, overlong, align, max_docs, repack))

    def balance(
        self,
        by: str = "cost",
        *,
        window: int | None = None,
        run: int | None = None,
        a: float = 1.0,
        b: float = 0.0,
        model: Any = None,
    ) -> "Feed":
        """Bring rows of like cost into the same step, in windows sorted by cost (a*n + b*n^2, summed by document).

        Args:
            by: "cost" | "tokens".
            window: rows sorted together, a multiple of `run`; None: 32 runs.
            run: rows that stay together; None: a step of the first start.
            a: cost of a token.
            b: cost of a pair of tokens of one document.
            model: gives a and b: a folder with config.json, a mapping or a configuration object. Operations of a
                forward pass, `plan.balance.Cost.of_model`.
        """
        if model is not None:
            if (a, b) != (1.0, 0.0) or by != "cost":
                raise ConfigError("model= gives a and b of the cost", where="balance", fix="model=, or a= and b=")
            found = import_module("thalweg.feed.modelcost").cost_of(model)
            a, b = found.a, found.b
        return self._then(st.Balance(by, window, run, a, b))

    def group_by_length(self, *, window: int | None = None) -> "Feed":
        """Bring samples of like length into the same step, so that padded batches waste little: balance by tokens.

        Args:
            window: rows sorted together, a multiple of a step's rows; None: 32 steps of the first start.
        """
        return self.balance("tokens", window=window)

    def batch(
        self,
        size: int | Sequence[tuple[int, int]],
        *,
        pad: str = "right",
        pad_to: int | None = None,
        pad_to_multiple_of: int = 1,
        pad_id: int | None = None,
        collate: Any = "hf",
        dtype: str = "int64",
    ) -> "Feed":
        """Stack `size` rows a rank and micro-batch.

        Args:
            size: rows; or a ramp, [(0, 2), (100_000, 4)]: 4 rows in steps that begin behind 100,000 rows of the run.
            pad: "right" | "left" | "none" (one flat row).
            pad_to: length; None is the capacity when packed, the longest when not.
            pad_to_multiple_of: round the length up.
            pad_id: token id of padding; None takes the recorded tokenizer's, else 0.
            collate: "hf" | "hf_mamba" (also seq_idx) | "varlen" (ids and borders alone) | "megatron" | "torchtitan" |
                "raw", or fn(list of dicts) -> dict.
            dtype: of ids, labels, positions and masks: "int64", or "int32" for half the memory and half the copy.
        """
        return self._then(st.Batch(st.batch_sizes(size), pad, pad_to, pad_to_multiple_of, pad_id, collate, dtype))

    def bucket(
        self,
        boundaries: Sequence[int],
        sizes: Sequence[int],
        *,
        remainder: str = "pad",
        pad: str = "right",
        pad_to: str = "longest",
        pad_to_multiple_of: int = 1,
        pad_id: int | None = None,
        collate: Any = "hf",
        dtype: str = "int64",
    ) -> "Feed":
        """Batch samples of like length, each bucket with its own batch size.

        Args:
            boundaries: tokens, rising; bucket i holds lengths above boundaries[i - 1] and up to boundaries[i].
            sizes: rows of a batch of each bucket, and one more for samples longer than the last boundary.
            remainder: last batch of a bucket: "pad" (rows of weight zero), "keep" (smaller), "drop", "up" a bucket.
            pad_to: "longest" sample of the batch, or the bucket's "boundary".
            pad, pad_to_multiple_of, pad_id, collate, dtype: as for `batch`.
        """
        return self._then(
            st.Bucket(
                tuple(boundaries), tuple(sizes), remainder, pad, pad_to, pad_to_multiple_of, pad_id, collate, dtype
            )
        )

    def token_budget(
        self,
        tokens: int,
        *,
        window: int | None = None,
        pad: str = "right",
        pad_to_multiple_of: int = 1,
        pad_id: int | None = None,
        collate: Any = "hf",
        dtype: str = "int64",
    ) -> "Feed":
        """Batch samples up to `tokens` padded tokens a rank and micro-batch."""
        return self._then(st.TokenBudget(tokens, window, pad, pad_to_multiple_of, pad_id, collate, dtype))

    # ---- look

    def peek(self, n: int = 1, after: str | None = None) -> list[Any]:
        """Give the first n items, made in this process with no workers; nothing moves.

        Args:
            n: items.
            after: a verb: items as that stage gives them; "source" for raw ones. None: the last stage.
        """
        items: list[Any] = import_module("thalweg.feed.look").peek(self, n, after)
        return items

    def at(self, i: int) -> Any:
        """Give item i of the first epoch, made in this process."""
        return import_module("thalweg.feed.look").at(self, i)

    def to_config(self) -> list[dict[str, Any]]:
        """Write the stages as a file of settings would, defaults left out; `tw.load_config` reads them.

        Raises:
            ConfigError: a function or data in memory that has no name a file could say.
        """
        config: list[dict[str, Any]] = import_module("thalweg.feed.config").config_of(self)
        return config

    def __iter__(self) -> Iterator[Any]:
        """Walk the first epoch in this process, item by item, without state."""
        items: Iterator[Any] = import_module("thalweg.feed.look").walk(self)
        return items

    def __len__(self) -> NoReturn:
        """Refuse: a DataLoader would take a feed with a length for a Dataset, and lose its order and state."""
        raise TypeError("a Feed has no len; for its rows say feed.num_rows, to train on it say tw.Loader(feed)")

    def __getitem__(self, index: Any) -> NoReturn:
        """Refuse, for the same reason."""
        raise TypeError(
            f"a Feed has no [{index!r}]; to look at an item say feed.at({index!r}), to train tw.Loader(feed)"
        )

    def __bool__(self) -> bool:
        """A feed is true; its length is not asked."""
        return True

    def __str__(self) -> str:
        """Say the stages, the kind, and what follows from it."""
        kind, why = rules.kind_of(self.stages)
        lines = [f"Feed, {kind}"]
        lines += [f"  {i} {stage}" for i, stage in enumerate(self.stages)]
        if kind == rules.PLANNED:
            lines += [_near(stage) for stage in self.stages if isinstance(stage, st.Shuffle) and stage.locality]
            lines += [s.growth() for s in self.stages if isinstance(s, st.Batch) and not isinstance(s.size, int)]
            lines.append(
                "  elastic: any world size, workers and accumulation continue the same order; resume in constant time"
            )
            why = losscount.unknown(self.stages) if _makes_tokens(self.stages[-1]) else None
            if why is not None:
                lines.append(f"  info.step_label_tokens is None on several ranks: {why}")
        else:
            lines.append(f"  a stream because {why}")
            lines.append("  costs: no length, no known number of steps; resume reads again up to one window")
            lines[-1] += self.stages[0].rereading() if isinstance(self.stages[0], st.FromStream) else ""
            held = self.stages[2:] if isinstance(self.stages[0], st.From) else self.stages  # else a permutation
            lines += [stage.window() for stage in held if isinstance(stage, st.Shuffle)]
        return "\n".join(lines)

    __repr__ = __str__


def _makes_tokens(last: st.Stage) -> bool:
    """Say whether a stage makes batches of tokens."""
    collate = getattr(last, "collate", "raw")
    return isinstance(collate, str) and collate != "raw"


def _near(stage: st.Shuffle) -> str:
    span = WINDOW * (stage.locality or 1)
    return (
        f"  shuffle: blocks of {stage.locality:,} permuted, samples mixed within windows of {span:,}, not over all data"
    )
