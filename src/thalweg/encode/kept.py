"""A tokenizer as transformers made it, kept so that the next process has it without transformers.

Decides what is kept (the engine's JSON and a page of facts), where, and when it no longer holds: another file in the
tokenizer's folder, another version of transformers or tokenizers. Importing transformers takes seconds, the engine a
third of one. What is not kept is asked of the real tokenizer, which is loaded then.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from thalweg.core.extras import need
from thalweg.encode.qwen import cache_folder

_LAYOUT = "2"
_FILES = ("*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken", "*.py")
_LARGEST = 64 << 20  # bytes of a file that can be part of a tokenizer


class Facts(msgspec.Struct, frozen=True):
    """What encoders read of a tokenizer beside its engine."""

    digest: str
    size: int
    bos_token_id: int | None
    eos_token_id: int | None
    pad_token_id: int | None
    unk_token_id: int | None
    special_tokens_map: dict[str, Any]
    all_special_tokens: list[str]
    chat_template: Any
    cleans: bool  # spaces before punctuation go when ids become text


class Kept:
    """A fast tokenizer out of the cache. What is not here is asked of the real one, and from then on everything is.

    Args:
        folder: where it is kept.
        load: loads the real one.
    """

    def __init__(self, folder: Path, load: Callable[[], Any]) -> None:
        self._load = load
        self._real: Any = None
        self.facts = msgspec.json.decode((folder / "facts.json").read_bytes(), type=Facts)
        self._engine: Any = need("tokenizers", why="encoding").Tokenizer.from_file(str(folder / "engine.json"))
        self._added: dict[int, Any] = self._engine.get_added_tokens_decoder()

    @property
    def is_untouched(self) -> bool:
        """Say whether nothing but what was kept has been used."""
        return self._real is None

    @property
    def real(self) -> Any:
        """The tokenizer of transformers; loaded when it is first asked for."""
        if self._real is None:
            self._real = self._load()
        return self._real

    def __getattr__(self, name: str) -> Any:
        """Give a fact, or ask the real one."""
        if name.startswith("__"):
            raise AttributeError(name)
        if self._real is None:
            if name in Facts.__struct_fields__:
                return getattr(self.facts, name)
            if name in _PARTS:
                return getattr(self, _PARTS[name])
        return getattr(self.real, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the real one."""
        return self.real(*args, **kwargs)

    def __len__(self) -> int:
        return self.facts.size if self._real is None else len(self._real)

    def __reduce__(self) -> Any:
        """Travel as the real one."""
        return _same, (self.real,)

    def get_vocab(self) -> dict[str, int]:
        """Give word -> id, added tokens included."""
        vocabulary: dict[str, int] = self.backend_tokenizer.get_vocab(with_added_tokens=True)
        return vocabulary

    def encode(self, text: str, add_special_tokens: bool = True, **more: Any) -> list[int]:
        """Encode a text."""
        if more or self._real is not None:
            ids: list[int] = self.real.encode(text, add_special_tokens=add_special_tokens, **more)
            return ids
        found: list[int] = self._engine.encode(text, add_special_tokens=add_special_tokens).ids
        return found

    def decode(self, ids: Any, **more: Any) -> str:
        """Give the text of ids, special tokens included."""
        if more or self._real is not None or self.facts.cleans or not isinstance(ids, list):
            text: str = self.real.decode(ids, **more)
            return text
        found: str = self._engine.decode(ids, skip_special_tokens=False)
        return found

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        """Give the id of a token, or ids of a list; the unknown token's where there is none."""
        if self._real is not None:
            return self._real.convert_tokens_to_ids(tokens)
        if isinstance(tokens, str):
            found = self._engine.token_to_id(tokens)
            return self.facts.unk_token_id if found is None else found
        return [self.convert_tokens_to_ids(token) for token in tokens]


_PARTS = {"backend_tokenizer": "_engine", "added_tokens_decoder": "_added"}


def _same(tokenizer: Any) -> Any:
    return tokenizer


def kept_or_made(path: str, load: Callable[[], Any], digest: Callable[[Any], str]) -> Any:
    """Give the tokenizer of a folder: kept, or made by transformers and then kept for the next process.

    Args:
        path: a folder with tokenizer.json; for anything else the tokenizer of transformers is given.
        load: makes it.
        digest: names what decides its ids.
    """
    key = _key(Path(path))
    if key is None:
        return load()
    folder = cache_folder() / "kept" / key
    if not (folder / "facts.json").is_file():
        tokenizer = load()
        _keep(tokenizer, folder, digest)
        return tokenizer
    return Kept(folder, load)


def _key(folder: Path) -> str | None:
    """Name the content of a tokenizer's folder and the versions that read it; None where it is not to be kept."""
    if not (folder / "tokenizer.json").is_file() or find_spec("tokenizers") is None:
        return None
    parts = [_LAYOUT]
    for package in ("transformers", "tokenizers"):
        try:
            parts.append(version(package))
        except PackageNotFoundError:
            return None
    hashed = xxhash.xxh3_128("\n".join(parts).encode())
    for file in _files(folder):
        if file.suffix == ".py":
            return None  # code of its own: only running it tells what it makes
        hashed.update(f"\n{file.name}\n".encode())
        hashed.update(file.read_bytes())
    return hashed.hexdigest()


def stamps(folder: Path) -> list[tuple[str, int, int]]:
    """Give name, size and time of change of each file of a tokenizer's folder; empty where it is none."""
    told = ((file.name, file.stat()) for file in _files(folder))
    return [(name, status.st_size, status.st_mtime_ns) for name, status in told]


def _files(folder: Path) -> Iterator[Path]:
    found = {file for pattern in _FILES for file in folder.glob(pattern)}
    return (file for file in sorted(found) if file.is_file() and file.stat().st_size <= _LARGEST)


def _keep(tokenizer: Any, folder: Path, digest: Callable[[Any], str]) -> None:
    """Write a tokenizer whole or not at all; one that needs its own class is not kept, nor where nothing can be."""
    engine = getattr(tokenizer, "backend_tokenizer", None)
    if engine is None or len(tokenizer) != engine.get_vocab_size(with_added_tokens=True):
        return
    named = {k: v for k, v in tokenizer.special_tokens_map.items() if isinstance(v, str)}
    facts = Facts(
        digest(tokenizer), len(tokenizer), tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id,
        getattr(tokenizer, "unk_token_id", None), named, list(tokenizer.all_special_tokens), tokenizer.chat_template,
        bool(getattr(tokenizer, "clean_up_tokenization_spaces", False)),
    )  # fmt: skip
    plain = type(engine).from_str(engine.to_str())
    plain.no_truncation()
    plain.no_padding()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".part-"))
        try:
            (part / "engine.json").write_text(plain.to_str(), encoding="utf-8")
            (part / "facts.json").write_bytes(msgspec.json.encode(facts))
            part.chmod(0o755)
            part.rename(folder)  # fails where another process was first
        finally:
            shutil.rmtree(part, ignore_errors=True)
    except OSError:
        return  # a full or read-only cache costs time, not the run
