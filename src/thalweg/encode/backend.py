"""How many texts become ids at once: flat int32 arrays from `tokenizers`, `fastokens`, or a tokenizer in Python.

Decides the call that keeps a core busy and never forks into a lock: a process forked after a parallel call works
text by text. Every backend gives the ids of the reference tokenizer; which one is used is `backend.choose`'s
decision, by proof. Knows no template and adds no token of its own.
"""

import logging
import os
import threading
from collections.abc import Sequence
from itertools import chain
from typing import Any, Protocol, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from thalweg.core.errors import ConfigError, nearest
from thalweg.core.extras import need
from thalweg.core.sample import offsets_of
from thalweg.encode.ranks import Ranks

Flat: TypeAlias = tuple[NDArray[np.int32], NDArray[np.int64]]  # ids end to end, and n + 1 offsets
_LOG = logging.getLogger("thalweg.encode")
ENOUGH = 1 << 20  # characters after which a fast engine is worth its start
PROOF = 64  # texts of the user's own on which it is proven

# Strings on which tokenizers of one name have been seen to differ: Unicode tables, marks, spaces, unassigned points.
ODD = (
    "", " ", "\n", "\r\n \t", "a\u0301 e\u0301", "\u200d\u200b\u2060", "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "\U00032c91's", "caf\u00e9 CAFE\u0301's I'LL", "0123456789 1,000.50", "\u0e01\u0e33 \u0627\u0644\u0639",
    "    def f(x):\n\treturn x+1\n\n\n", "\u3000\u4e2d\u6587\uff0c\u6d4b\u8bd5\u3002", "\ufdfa\ufb03\u2460",
    "\x00\x7f\x85",
    "\u1e9b\u0323", "x" * 600, " " * 300, "\u0378\u0e5c\u07b2", "don't DON'T 's'S", "\ue000\uf8ff\U000f0000",
)  # fmt: skip


class Backend(Protocol):
    """Turns texts into ids, nothing added before or after them."""

    @property
    def name(self) -> str:
        """Name of the engine."""
        ...

    def encode(self, texts: Sequence[str], *, special: bool) -> Flat:
        """Encode texts.

        Args:
            texts: any number of strings.
            special: True reads special tokens in a text as such; False as the text they are written with.

        Returns:
            int32 (T,) ids end to end and int64 (n + 1,) offsets.
        """
        ...


def _flat(rows: Sequence[Sequence[int]]) -> Flat:
    offsets = offsets_of([len(r) for r in rows])
    ids = np.fromiter(chain.from_iterable(rows), np.int32, count=int(offsets[-1]))
    return ids, offsets


class Tokenizers:
    """The reference: `tokenizers` of Hugging Face, in batches that release the interpreter."""

    name = "tokenizers"

    def __init__(self, tokenizer: Any) -> None:
        self._json = tokenizer.backend_tokenizer.to_str()
        self._made = os.getpid()
        self._engines: dict[bool, Any] = {}

    def engine(self, *, special: bool) -> Any:
        """Give the engine of one reading, a copy that nobody else configures."""
        if special not in self._engines:
            engine = need("tokenizers", why="encoding").Tokenizer.from_str(self._json)
            engine.no_truncation()
            engine.no_padding()
            engine.encode_special_tokens = not special
            self._engines[special] = engine
        return self._engines[special]

    def encode(self, texts: Sequence[str], *, special: bool) -> Flat:
        """Encode texts; see `Backend`."""
        engine = self.engine(special=special)
        if len(texts) == 1 or os.getpid() != self._made:  # a forked child has no threads of the parent's pool
            return _flat([engine.encode(text, add_special_tokens=False).ids for text in texts])
        return _flat([e.ids for e in engine.encode_batch_fast(list(texts), add_special_tokens=False)])

    def offsets(self, text: str) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Encode one text with special tokens read, and give each token's characters: int64 (n, 2), half-open."""
        encoding = self.engine(special=True).encode(text, add_special_tokens=False)
        return np.array(encoding.ids, np.int32), np.array(encoding.offsets, np.int64).reshape(-1, 2)


class Fastokens:
    """`fastokens`: the same ids 20 to 30 times faster, straight into one buffer."""

    name = "fastokens"

    def __init__(self, tokenizer: Any) -> None:
        self._json = tokenizer.backend_tokenizer.to_str()
        self._made = os.getpid()
        self._engine: Any = need("fastokens", why='backend="fastokens"').Tokenizer.from_json_str(self._json)
        self._engine.no_truncation()
        self._engine.no_padding()

    def encode(self, texts: Sequence[str], *, special: bool) -> Flat:
        """Encode texts; see `Backend`."""
        if os.getpid() != self._made:
            one = self._engine.encode
            return _flat([one(text, split_special_tokens=not special).ids for text in texts])
        ids, offsets = self._engine.encode_batch_flat(list(texts), split_special_tokens=not special)
        return np.frombuffer(ids, np.int32), np.frombuffer(offsets, np.int64)


class Python:
    """A tokenizer written in Python (or SentencePiece behind it): text by text, as it does it itself."""

    name = "python"

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def encode(self, texts: Sequence[str], *, special: bool) -> Flat:
        """Encode texts; see `Backend`."""
        encode = self._tokenizer.encode
        return _flat([encode(t, add_special_tokens=False, split_special_tokens=not special) for t in texts])


class Auto:
    """Begins with the reference, and takes the fastest that proves equal once there is enough text to be worth it.

    A fast engine takes more than a second to load, as long as the reference takes for some megabytes: who looks at a
    few records never waits for it. Ids are the same before and after. Threads go on while one of them decides.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._now: Backend | None = None
        self._open, self._seen = True, 0
        self._texts: list[str] = []
        self._deciding = threading.Lock()

    @property
    def name(self) -> str:
        """Name of the engine that is used now."""
        return self._first().name

    def _first(self) -> Backend:
        if self._now is None:
            plain = getattr(self._tokenizer, "backend_tokenizer", None) is None
            self._open = not plain
            self._now = Python(self._tokenizer) if plain else reference(self._tokenizer)
        return self._now

    def encode(self, texts: Sequence[str], *, special: bool) -> Flat:
        """Encode texts; see `Backend`."""
        now = self._first()
        if self._open and self._deciding.acquire(blocking=False):
            try:
                now = self._look(texts) if self._open else self._first()
            finally:
                self._deciding.release()
        return now.encode(texts, special=special)

    def _look(self, texts: Sequence[str]) -> Backend:
        """Count what comes, and decide when it is enough."""
        self._seen += sum(map(len, texts))
        self._texts += [text[:4096] for text in texts[: PROOF - len(self._texts)]]
        if self._seen >= ENOUGH:
            self._now = choose(self._tokenizer, "auto", self._texts)
            self._open, self._texts = False, []
        return self._first()


def automatic(tokenizer: Any) -> Auto:
    """Give the engine that chooses itself, one for all encoders of a tokenizer in this process."""
    return _shared(tokenizer, Auto)


def choose(tokenizer: Any, backend: str, texts: Sequence[str]) -> Backend:
    """Choose a backend; with "auto" the fast one where it proves equal on odd strings and on `texts`.

    Engines of one tokenizer object are made once in a process and shared by all its encoders.

    Args:
        tokenizer: as `load_tokenizer` gives it.
        backend: "auto", "tokenizers", "fastokens", "tiktoken" or "python".
        texts: a sample of the user's own data, for the proof.

    Raises:
        ConfigError: an unknown name, or a backend that this tokenizer cannot have, or that gives other ids.
    """
    names = ("auto", "tokenizers", "fastokens", "tiktoken", "python")
    if backend not in names:
        raise ConfigError(f"unknown backend {backend!r}", where="backend=", fix=nearest(backend, names))
    if getattr(tokenizer, "backend_tokenizer", None) is None or backend == "python":
        if backend in {"tokenizers", "fastokens", "tiktoken"}:
            raise ConfigError(f"backend={backend!r} needs a fast tokenizer (tokenizer.json)", fix='backend="auto"')
        return Python(tokenizer)
    if backend == "fastokens":
        return _shared(tokenizer, Fastokens)
    if backend == "tokenizers":
        return reference(tokenizer)
    if backend == "tiktoken":
        ranks = _shared(tokenizer, Ranks)
        differing = first_difference(ranks, reference(tokenizer), [*ODD, *texts])
        if differing is not None:
            raise ConfigError(f"tiktoken gives other ids for {differing[:80]!r}", fix='backend="auto"')
        return ranks
    try:
        fast = _shared(tokenizer, Fastokens)
    except ImportError:
        return reference(tokenizer)
    except Exception as error:  # noqa: BLE001 - an engine that cannot load this vocabulary is no engine for it
        _LOG.warning("fastokens does not load this tokenizer (%s); encoding with tokenizers", str(error)[:200])
        return reference(tokenizer)
    differing = first_difference(fast, reference(tokenizer), [*ODD, *texts])
    if differing is None:
        return fast
    _LOG.warning("fastokens gives other ids for %r; encoding with tokenizers", differing[:80])
    return reference(tokenizer)


def reference(tokenizer: Any) -> Tokenizers:
    """Give the reference engine of a fast tokenizer."""
    return _shared(tokenizer, Tokenizers)


E = TypeVar("E", Tokenizers, Fastokens, Ranks, Auto)
_MAKING = threading.Lock()  # an engine takes seconds: threads that start together wait for one
_ENGINES: "WeakKeyDictionary[Any, dict[tuple[type[Any], int, int], Any]]" = WeakKeyDictionary()


def _shared(tokenizer: Any, kind: type[E]) -> E:
    """Make an engine, or find the one made for the same tokenizer, vocabulary size and process."""
    try:
        engines = _ENGINES.setdefault(tokenizer, {})
    except TypeError:  # an object that cannot be referred to weakly
        return kind(tokenizer)
    key = (kind, len(tokenizer), os.getpid())
    if key not in engines:
        with _MAKING:
            if key not in engines:
                engines[key] = kind(tokenizer)
    engine: E = engines[key]
    return engine


def first_difference(fast: Backend, sure: Backend, texts: Sequence[str]) -> str | None:
    """Give the first text on which two backends differ, special tokens read or not; None where they agree."""
    right, at = sure.encode(texts, special=True)
    for special in (True, False):
        ids, offsets = fast.encode(texts, special=special)
        if np.array_equal(offsets, at) and np.array_equal(ids, right):
            continue
        for i, text in enumerate(texts):
            mine = ids[offsets[i] : offsets[i + 1]]
            if np.array_equal(mine, right[at[i] : at[i + 1]]):
                continue
            # a text with a special token has other ids when it is not read: compare like with like
            if special or not np.array_equal(mine, sure.encode([text], special=False)[0]):
                return text
    return None
