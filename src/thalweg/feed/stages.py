"""The stages of a feed as values: one frozen dataclass a verb, printable, comparable, nothing opened or run.

Decides what each verb remembers. Which stage may follow which is in `feed.rules`; what a stage does is elsewhere.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

if TYPE_CHECKING:
    from thalweg.feed.feed import Feed
    from thalweg.feed.source import Source

SHOWN = 20  # values of a setting that are written out
Entry: TypeAlias = tuple[int, tuple[tuple[str, Fraction], ...]]  # a breakpoint and the weights from it on


@dataclass(frozen=True, eq=False)
class Stage:
    """One step of a feed. `verb` is the word that the user typed."""

    verb: ClassVar[str] = ""

    def __str__(self) -> str:
        """Write it as it was typed, defaults left out."""
        shown: list[str] = []
        for f in fields(self):
            value = getattr(self, f.name)
            if value != f.default:
                shown.append(f"{f.name}={describe(value)}")
        return f"{self.verb}({', '.join(shown)})"


def describe(value: Any) -> str:
    """Name a setting: functions by their qualified name, long values by their size."""
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{getattr(value, '__module__', '')}.{value.__qualname__}".removeprefix("__main__.")
    if isinstance(value, list | tuple | dict | set) and len(value) > SHOWN:
        return f"{type(value).__name__} of {len(value):,}"  # data in memory: written out it would take seconds
    text = repr(value)
    if " at 0x" in text:
        return type(value).__qualname__  # without its address, which says nothing and changes
    if "\n" in text:
        text = " ".join(text.split())
    name = type(value).__name__
    return text if len(text) <= 60 else f"{name}({text.removeprefix(f'{name}(')[:40]}...)"


@dataclass(frozen=True, eq=False)
class From(Stage):
    """Data with random access. `origin` is the path or a word for the object; `opened_by` is the name typed.

    `given` is what the opener was told by name, where a file could say it; None for data in memory.
    """

    source: "Source"
    origin: str
    opened_by: str = "from_dataset"
    given: "Mapping[str, Any] | None" = None
    verb: ClassVar[str] = "from"

    def __str__(self) -> str:
        """Write it as it was typed."""
        return f"{self.opened_by}({self.origin!r})"


@dataclass(frozen=True, eq=False)
class FromStream(Stage):
    """Data without random access: an iterable, or a function that makes one."""

    make: Any
    shards: int | None = None
    shard_by: str = "auto"
    verb: ClassVar[str] = "from_stream"

    def rereading(self) -> str:
        """Say what a resume reads again before its place; empty where a source goes there by itself."""
        if isinstance(self.make, Sequence) or hasattr(self.make, "load_state_dict"):
            return ""
        return ", and the source up to its place where it has no load_state_dict (without preprocessing)"


@dataclass(frozen=True, eq=False)
class Concat(Stage):
    """All samples of each feed, once, as one permutation where shuffled."""

    feeds: tuple[tuple[str, "Feed"], ...]
    verb: ClassVar[str] = "concat"

    def __str__(self) -> str:
        """Name the parts."""
        return f"concat({', '.join(name for name, _ in self.feeds)})"


@dataclass(frozen=True, eq=False)
class Mix(Stage):
    """Feeds interleaved by weight. `schedule` holds (breakpoint, weights), rising, the first at 0."""

    feeds: tuple[tuple[str, "Feed"], ...]
    schedule: tuple[Entry, ...]
    by: str = "samples"
    at: str = "samples"
    on_exhausted: str = "stop_first"
    seed: int | None = None
    verb: ClassVar[str] = "mix"

    def __str__(self) -> str:
        """Name the parts, the weights of each entry as decimal numbers."""
        parts = [
            f"{start}: {{{', '.join(f'{name}: {float(w):.6g}' for name, w in weights)}}}"
            for start, weights in self.schedule
        ]
        return f"mix({'; '.join(parts)}, by={self.by!r}, on_exhausted={self.on_exhausted!r})"


@dataclass(frozen=True, eq=False)
class Take(Stage):
    """The first n samples."""

    n: int
    verb: ClassVar[str] = "take"


@dataclass(frozen=True, eq=False)
class Skip(Stage):
    """All but the first n samples."""

    n: int
    verb: ClassVar[str] = "skip"


@dataclass(frozen=True, eq=False)
class Select(Stage):
    """The samples at these indices, in this order."""

    indices: Any
    verb: ClassVar[str] = "select"

    def __str__(self) -> str:
        """Say how many."""
        return f"select({len(self.indices)} indices)"


@dataclass(frozen=True, eq=False)
class Split(Stage):
    """The samples whose id hashes into `part`. `shares` are (name, share), in the order typed.

    `depth` counts the splits before it, so that a split of one side divides it anew.
    """

    shares: tuple[tuple[str, float], ...]
    part: str
    seed: int = 0
    depth: int = 0
    verb: ClassVar[str] = "split"


@dataclass(frozen=True, eq=False)
class Repeat(Stage):
    """The same samples n times, inside `concat` or `mix`."""

    n: int
    verb: ClassVar[str] = "repeat"


@dataclass(frozen=True, eq=False)
class Shuffle(Stage):
    """A permutation new in each epoch (planned), or a seeded window (stream)."""

    seed: int | None = None
    buffer_size: int = 10_000
    locality: int | None = None
    verb: ClassVar[str] = "shuffle"

    def window(self) -> str:
        """Say what it holds on a stream, and how far samples move: a third of a block is the mean of |i - j|."""
        n = self.buffer_size
        return (
            f"  shuffle: seeded blocks of {n:,} samples, held in memory for each sub-stream of a rank; "
            f"a sample moves by {n / 3:,.0f} places on average"
        )


@dataclass(frozen=True, eq=False)
class Map(Stage):
    """A function on samples (or on rows, behind `pack`)."""

    fn: Callable[..., Any]
    batched: bool | int = False
    with_info: bool = False
    remove_columns: Any = None
    input_columns: Any = None
    output_columns: Any = None
    workers: int | str = "auto"
    mode: str = "auto"
    on_error: str = "raise"
    max_bad: float | int = 0.01
    quarantine: str | None = None
    timeout: float | None = None
    length: str | None = None
    ahead: int | None = None
    verb: ClassVar[str] = "map"


@dataclass(frozen=True, eq=False)
class Filter(Stage):
    """Keeps the samples for which fn is true. `columns` are table columns: then no sample is read."""

    fn: Callable[..., Any]
    columns: Any = None
    with_info: bool = False
    verb: ClassVar[str] = "filter"


@dataclass(frozen=True, eq=False)
class Cache(Stage):
    """Runs what precedes it once; lengths are known from here on."""

    path: str | None = None
    what: str = "samples"
    scope: str = "node"
    max_bytes: int | str | None = None
    verb: ClassVar[str] = "cache"


@dataclass(frozen=True, eq=False)
class Pack(Stage):
    """Samples into rows of at most `capacity` tokens; with several capacities each row has one of them."""

    capacity: int | tuple[int, ...]
    policy: str = "best_fit"
    overlong: str | None = None
    align: int = 1
    max_docs: int | None = None
    repack: str = "epoch"
    verb: ClassVar[str] = "pack"

    @property
    def capacities(self) -> tuple[int, ...]:
        """Row lengths, rising."""
        return (self.capacity,) if isinstance(self.capacity, int) else self.capacity

    @property
    def longest(self) -> int:
        """The largest row length."""
        return self.capacities[-1]


@dataclass(frozen=True, eq=False)
class Balance(Stage):
    """Rows of like cost side by side: windows of rows sorted by cost, cut into runs (SEMANTICS 3.3)."""

    by: str = "cost"
    window: int | None = None
    run: int | None = None
    a: float = 1.0
    b: float = 0.0
    verb: ClassVar[str] = "balance"


@dataclass(frozen=True, eq=False)
class Batch(Stage):
    """`size` rows a rank and micro-batch; a ramp holds (rows of the run before, size), rising, the first at 0."""

    size: int | tuple[tuple[int, int], ...]
    pad: str = "right"
    pad_to: int | None = None
    pad_to_multiple_of: int = 1
    pad_id: int | None = None
    collate: Any = "hf"
    dtype: str = "int64"
    verb: ClassVar[str] = "batch"

    @property
    def sizes(self) -> tuple[int, ...]:
        """Rows of a micro-batch, one number for each stretch of the run."""
        return (self.size,) if isinstance(self.size, int) else tuple(n for _, n in self.size)

    def growth(self) -> str:
        """Say when the rows of a micro-batch change."""
        assert not isinstance(self.size, int)
        parts = [f"{n:,} from row {start:,} of the run" if start else f"{n:,}" for start, n in self.size]
        return f"  batch: rows a rank and micro-batch: {', '.join(parts)} (steps that begin there or later)"


@dataclass(frozen=True, eq=False)
class Bucket(Stage):
    """Samples of like length together: one batch size for each bucket. Batches are the unit of the order."""

    boundaries: tuple[int, ...]
    sizes: tuple[int, ...]
    remainder: str = "pad"
    pad: str = "right"
    pad_to: str = "longest"
    pad_to_multiple_of: int = 1
    pad_id: int | None = None
    collate: Any = "hf"
    dtype: str = "int64"
    verb: ClassVar[str] = "bucket"


@dataclass(frozen=True, eq=False)
class TokenBudget(Stage):
    """Batches of at most `tokens` padded tokens. Batches are the unit of the order."""

    tokens: int
    window: int | None = None
    pad: str = "right"
    pad_to_multiple_of: int = 1
    pad_id: int | None = None
    collate: Any = "hf"
    dtype: str = "int64"
    verb: ClassVar[str] = "token_budget"


def row_lengths(capacity: int | Sequence[int]) -> Any:
    """Read row lengths as typed: one, or several in any order. Nothing is checked here."""
    if isinstance(capacity, Sequence) and not isinstance(capacity, str):
        several = tuple(sorted(set(capacity)))
        return several[0] if len(several) == 1 else several
    return capacity


def batch_sizes(size: Any) -> Any:
    """Read the rows of a micro-batch as typed: one number, or [(rows of the run before, number)]. Checks nothing."""
    if not isinstance(size, Sequence) or isinstance(size, str):
        return size
    ramp = tuple(tuple(entry) if isinstance(entry, Sequence) else entry for entry in size)
    alone = len(ramp) == 1 and isinstance(ramp[0], tuple) and len(ramp[0]) == 2 and ramp[0][0] == 0
    return ramp[0][1] if alone else ramp


def splits_of(stages: "Sequence[Stage]") -> int:
    """Count the splits that samples go through, those of the parts of a concat or mix included."""
    own = sum(isinstance(stage, Split) for stage in stages)
    return own + max((splits_of(part.stages) for _, part in getattr(stages[0], "feeds", ())), default=0)


BATCHING = (Batch, Bucket, TokenBudget)
SOURCES = (From, FromStream, Concat, Mix)


def schedule_of(
    weights: Mapping[str, float] | Sequence[tuple[float, Mapping[str, float]]] | None, names: Sequence[str]
) -> tuple[Entry, ...]:
    """Read weights as typed: one mapping, or [(breakpoint, mapping)]. None: equal weights.

    Weights become fractions of at most six decimal places, breakpoints integers. Nothing is checked here.
    """
    if weights is None:
        weights = dict.fromkeys(names, 1.0)
    entries = [(0, weights)] if isinstance(weights, Mapping) else list(weights)
    return tuple(
        (int(start), tuple((name, as_fraction(given.get(name, 0))) for name in names)) for start, given in entries
    )


def as_fraction(weight: float | Fraction) -> Fraction:
    """Read a weight as a fraction of at most six decimal places."""
    return Fraction(weight).limit_denominator(10**6)
