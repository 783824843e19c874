"""Credentials in a pipeline: which values are some, and where they are found before a pipeline is written to a file.

Decides that by names (of options, attributes, keys and variables), by the shape of well-known keys and by passwords in
URLs; looks at what pickling would write. Writes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import CodeType, FunctionType, ModuleType, NoneType
from typing import Any

from thalweg.core.document import Document
from thalweg.core.errors import ConfigError
from thalweg.core.uses import MOST, uses
from thalweg.steps.folder import Folder

HIDDEN = "<not written>"
_DEPTH = 12
# documents are data, whatever their metadata are called; modules and classes travel by name
_NOTHING_INSIDE = (NoneType, str, bytes, int, float, Document, ModuleType, type)
# in the options of a file system
_OPTION = re.compile(r"key|token|username|headers|account_key|sas_token|connection_string|authorization", re.IGNORECASE)
# anywhere: `eos_token` and its like are none
_ANYWHERE = re.compile(
    r"(.*_)?(secret(s|_key)?|secret_access_key|access_key(_id)?|api_key|password|passwd|credentials?)"
    r"|((hf|api|auth|access|session|bearer|aws_session|github|security)_)?token",
    re.IGNORECASE,
)
_SHAPE = re.compile(r"hf_\w{30,}|A(KI|SI)A[A-Z0-9]{16}|sk-[\w-]{20,}|gh[pousr]_\w{30,}|xox[abp]-[\w-]{20,}")
_USER_IN_URL = re.compile(r"(\w+://)[^/@\s:]+:[^/@\s]+@")


def is_credential(name: str, value: Any) -> bool:
    """Say whether a named value is one: text under a telling name. Text in the shape of a key needs no name."""
    if not isinstance(value, str | bytes) or not value:
        return False
    return bool(_ANYWHERE.fullmatch(name)) or (isinstance(value, str) and bool(_SHAPE.fullmatch(value)))


def masked(text: str) -> str:
    """Take user and password out of URLs, and keys by their shape out of any text."""
    return _SHAPE.sub(HIDDEN, _USER_IN_URL.sub(rf"\1{HIDDEN}@", text))


def is_place(value: Any) -> bool:
    """Say whether a value is (URL, options of the file system)."""
    if not isinstance(value, tuple | list) or len(value) != 2:
        return False
    url, options = value
    return isinstance(url, str) and "://" in url and isinstance(options, Mapping)


def in_options(options: Any, path: str = "") -> Iterator[str]:
    """Name the options of a file system that hold credentials, nested ones as "client_kwargs.password"."""
    if not isinstance(options, Mapping):
        return
    for name, value in options.items():
        full = f"{path}{name}"
        if isinstance(value, Mapping) and not _OPTION.fullmatch(str(name)):
            yield from in_options(value, f"{full}.")
        elif value and (_OPTION.fullmatch(str(name)) or is_credential(str(name), value)):
            yield full


@dataclass(frozen=True, slots=True)
class _Found:
    """Credentials of one place: names of options of a folder, or one value that a step holds."""

    place: str
    names: tuple[str, ...] = ()


def refuse_credentials(way: str, *things: Any) -> None:
    """Refuse a pipeline that holds credentials, at any depth: in options of folders, or as values of steps.

    Args:
        way: how the environment, or secrets, reach what reads the file.
        *things: steps, folders, or (URL, options) pairs.

    Raises:
        ConfigError: there are some; place and names are told, never a value.
    """
    for found in chain.from_iterable(_walk(thing, "", set(), 0) for thing in things):
        where, names = masked(found.place), ", ".join(sorted(found.names))
        if names:
            raise ConfigError(
                f"options of a folder may hold credentials ({names}), and this launch would write them to a file",
                where=where,
                fix=f"leave them out and set them in the environment (AWS_ACCESS_KEY_ID, ...): {way}",
            )
        raise ConfigError(
            "a step holds what looks like a credential, and this launch would write it to a file",
            where=where,
            fix=f"read it from the environment where it is used, in run(): {way}; what is none needs another name",
        )


def _walk(value: Any, place: str, seen: set[int], depth: int) -> Iterator[_Found]:
    if isinstance(value, _NOTHING_INSIDE) or depth > _DEPTH or id(value) in seen:
        return
    seen.add(id(value))
    inner: Iterable[tuple[Any, Any]] = ()
    if is_place(value):
        yield from _of_options(str(value[0]), value[1])
    elif isinstance(value, Folder):
        yield from _of_options(value.path, value.options)
        inner = [("path", value.path), ("fs", value.fs)]
    elif isinstance(value, Mapping):
        inner = list(value.items()) if len(value) <= MOST else ()
    elif isinstance(value, Sequence | set | frozenset):
        inner = [("", v) for v in list(value)[:MOST]]
    elif hasattr(value, "storage_options"):  # a file system, or a folder of another library that is one
        path = str(getattr(value, "path", place))
        yield from _of_options(path, value.storage_options)
        inner = [("path", path), ("fs", getattr(value, "fs", None))]
    else:
        inner = _inside(value)
        place = getattr(value, "__qualname__", None) or type(value).__name__
    for name, held in inner:
        path = ".".join(filter(None, (place, str(name))))
        if is_credential(str(name), held) or (isinstance(held, str) and _USER_IN_URL.match(held)):
            yield _Found(path)
        yield from _walk(held, path, seen, depth + 1)


def _of_options(path: str, options: Any) -> Iterator[_Found]:
    if names := tuple(in_options(options)):
        yield _Found(path, names)


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    """Name what pickling takes along of a function or an object."""
    function: FunctionType | None = getattr(value, "__func__", value if hasattr(value, "__code__") else None)
    if function is not None:
        code = function.__code__
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            try:
                yield name, cell.cell_contents
            except ValueError:  # not filled yet
                continue
        yield from uses(function)[0].items()
        given = function.__defaults__ or ()
        yield from zip(code.co_varnames[code.co_argcount - len(given) : code.co_argcount], given, strict=True)
        yield from (function.__kwdefaults__ or {}).items()
        yield from (("", text) for text in _texts(code))
        yield "", getattr(value, "__self__", None)
    else:
        yield from _state(value).items()


def _texts(code: CodeType) -> Iterator[str]:
    for constant in code.co_consts:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, CodeType):
            yield from _texts(constant)


def _state(value: Any) -> dict[str, Any]:
    """Give what an object is pickled as: its attributes, or what its own methods for that keep of them."""
    for name in ("__reduce__", "__getstate__"):
        own = getattr(type(value), name, None)
        if isinstance(own, FunctionType):
            state: Any = own(value)
            return state if isinstance(state, dict) else {"": state}
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    return getattr(value, "__dict__", {}) | {name: getattr(value, name, None) for name in slots if name != "__dict__"}
