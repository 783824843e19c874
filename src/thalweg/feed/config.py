"""A feed as settings, both ways: a list of stages, each a verb with what it was told.

Decides the words of a stage in a file: those of the Python call. Every verb of `Feed` and every opener of
`feed.open` is found by its name, so a new one is in files at once. Knows no file, no loader and no environment.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from thalweg.core.errors import ConfigError, nearest
from thalweg.feed import join
from thalweg.feed import open as openers
from thalweg.feed import stages as st
from thalweg.feed.feed import Feed
from thalweg.feed.named import build, code, written
from thalweg.store.settings import one_name, refuse_unknown

CODE = {"fn", "collate", "make", "obj", "indices"}  # settings that may name code
_EXAMPLE = "- shuffle: {seed: 3}"
_MIX = ("weights", "by", "on_exhausted", "at", "seed", "sources")


def verbs() -> dict[str, Callable[..., Any]]:
    """Give verb -> the method of `Feed` that it is."""
    kinds = [kind for kind in st.Stage.__subclasses__() if hasattr(Feed, kind.verb)]
    return {kind.verb: getattr(Feed, kind.verb) for kind in kinds} | {"group_by_length": Feed.group_by_length}


def sources() -> dict[str, Callable[..., Any]]:
    """Give the name of each opener -> the opener."""
    return {name: fn for name, fn in vars(openers).items() if name.startswith("from_")}


def feed_of(config: Any, where: str) -> Feed:
    """Build the feed that a list of stages describes; one source alone may stand without a list.

    Args:
        config: [{verb: settings}, ...]; a single value below a verb is its first argument.
        where: of the file, for errors.

    Raises:
        ConfigError: an unknown verb or setting, with the nearest; code that is not there; a wrong order of stages.
    """
    entries: list[Any] = config if isinstance(config, list) else [config]
    feed: Feed | None = None
    for number, entry in enumerate(entries):
        at = f"{where}.{number}"
        verb, settings = one_name(entry, at, _EXAMPLE)
        feed = _begin(verb, settings, at) if feed is None else _then(feed, verb, settings, at)
    if feed is None:
        raise ConfigError("a feed without stages", where=where, fix="begin with from_records, from_files, mix, ...")
    return feed


def _begin(verb: str, settings: Any, where: str) -> Feed:
    opened = sources()
    if verb in {"mix", "concat"}:
        return _joined(verb, settings, where)
    if verb not in opened:
        known = [*opened, "mix", "concat"]
        if verb in verbs():
            raise ConfigError(
                f"{verb!r} cannot be the first stage", where=where, fix="begin with " + nearest("", known)
            )
        raise ConfigError(f"unknown source {verb!r}", where=where, fix=nearest(verb, known))
    fn = opened[verb]
    given = arguments(fn, settings, where)
    feed: Feed = fn(**{k: code(v, where) if k in CODE else build(v, where) for k, v in given.items()})
    head = feed.stages[0]
    if isinstance(head, st.From):
        return Feed((replace(head, given=given), *feed.stages[1:]))
    return feed


def _joined(verb: str, settings: Any, where: str) -> Feed:
    if not isinstance(settings, Mapping) or not isinstance(settings.get("sources"), Mapping):
        raise ConfigError(
            f"{verb} takes sources by name", where=where, fix=f"{verb}: {{sources: {{web: {{from_records: path}}}}}}"
        )
    refuse_unknown(settings, _MIX if verb == "mix" else ("sources",), f"{verb} takes no", where)
    feeds = {str(k): feed_of(v, f"{where}.{verb}.sources.{k}") for k, v in settings["sources"].items()}
    if verb == "concat":
        return join.concat(feeds)
    rest = {k: v for k, v in settings.items() if k != "sources"}
    if isinstance(rest.get("weights"), list):
        rest["weights"] = [tuple(entry) for entry in rest["weights"]]
    return join.mix(feeds, **rest)


def _then(feed: Feed, verb: str, settings: Any, where: str) -> Feed:
    known = verbs()
    if verb not in known:
        raise ConfigError(f"unknown stage {verb!r}", where=where, fix=nearest(verb, known))
    if verb == "split":
        refuse_unknown(settings or (), ("shares", "part", "seed"), "split takes no", where)
        parts = feed.split(settings.get("shares"), seed=settings.get("seed", 0))
        refuse_unknown([settings.get("part")], parts, "no part", where)
        return parts[settings["part"]]
    given = arguments(known[verb], settings, where)
    given = {k: code(v, where) if k in CODE else build(v, where) for k, v in given.items()}
    made: Feed = known[verb](feed, **given)
    return made


def arguments(fn: Callable[..., Any], settings: Any, where: str) -> dict[str, Any]:
    """Read what a call is told: nothing, one value for its first argument, or values by name.

    Raises:
        ConfigError: a name that it does not take, or one that is missing.
    """
    parameters = {n: p for n, p in inspect.signature(fn).parameters.items() if n != "self"}
    if settings is None:
        settings = {}
    if not isinstance(settings, Mapping):
        settings = {next(iter(parameters)): settings}
    refuse_unknown(settings, parameters, f"{fn.__name__} takes no", where)
    missing = [n for n, p in parameters.items() if p.default is p.empty and n not in settings]
    if missing:
        raise ConfigError(
            f"{fn.__name__} needs {missing[0]!r}", where=where, fix=f"say {fn.__name__}: {{{missing[0]}: ...}}"
        )
    return {str(k): v for k, v in settings.items()}


def config_of(feed: Feed) -> list[dict[str, Any]]:
    """Write a feed as a file would: the reverse of `feed_of`, defaults left out.

    Raises:
        ConfigError: a stage holds a function or data without a name.
    """
    return [_stage(stage) for stage in feed.stages]


def _stage(stage: st.Stage) -> dict[str, Any]:
    if isinstance(stage, st.From):
        if stage.given is None:
            raise ConfigError(f"{stage.opened_by} of data in memory has no name in a file", where=str(stage))
        return {stage.opened_by: _source(openers_of(stage.opened_by), stage.given, str(stage))}
    if isinstance(stage, st.FromStream):
        given = {f.name: getattr(stage, f.name) for f in fields(stage)}
        return {"from_stream": _source(openers.from_stream, given, str(stage))}
    if isinstance(stage, st.Concat):
        return {"concat": {"sources": _named(stage.feeds)}}
    if isinstance(stage, st.Mix):
        return {"mix": _mix(stage)}
    if isinstance(stage, st.Split):
        rest: dict[str, Any] = {"seed": stage.seed} if stage.seed else {}
        return {"split": {"shares": dict(stage.shares), "part": stage.part, **rest}}
    method = inspect.signature(getattr(Feed, stage.verb)).parameters
    told = {f.name: getattr(stage, f.name) for f in fields(stage)}
    if isinstance(stage, st.Map) and getattr(stage.fn, "whole_sample", False):
        told.pop("remove_columns")  # follows from the function
    return {stage.verb: {k: written(v, str(stage)) for k, v in told.items() if v is not _default(method, k, v)}}


def _default(parameters: Mapping[str, inspect.Parameter], name: str, value: Any) -> Any:
    """Give the value itself where it is the default, else something that no value is."""
    default = parameters[name].default
    return value if type(default) is type(value) and default == value else parameters


def openers_of(name: str) -> Callable[..., Any]:
    """Give an opener by its name."""
    return sources()[name]


def _source(fn: Callable[..., Any], given: Mapping[str, Any], where: str) -> Any:
    """Write what an opener was told: the first argument alone where the rest are defaults."""
    parameters = inspect.signature(fn).parameters
    first = next(iter(parameters))
    told = {k: written(v, where) for k, v in given.items() if k == first or v is not _default(parameters, k, v)}
    return told[first] if len(told) == 1 and not isinstance(told[first], Mapping) else told


def _mix(stage: st.Mix) -> dict[str, Any]:
    entries = [[start, {name: written(w) for name, w in weights}] for start, weights in stage.schedule]
    out: dict[str, Any] = {"weights": entries[0][1] if len(entries) == 1 else entries}
    defaults = inspect.signature(join.mix).parameters
    for name in ("by", "on_exhausted", "at", "seed"):
        value = getattr(stage, name)
        if value is not _default(defaults, name, value):
            out[name] = value
    return {**out, "sources": _named(stage.feeds)}


def _named(feeds: Sequence[tuple[str, Feed]]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, feed in feeds:
        stages = config_of(feed)
        out[name] = stages[0] if len(stages) == 1 else stages
    return out


def resolved(config: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Fill in every default of a list of stages as `config_of` writes it."""
    out: list[dict[str, Any]] = []
    for entry in config:
        ((verb, told),) = entry.items()
        if verb in {"mix", "concat"}:
            inner = {k: resolved(v if isinstance(v, list) else [v]) for k, v in told["sources"].items()}
            more = {n: p.default for n, p in inspect.signature(join.mix).parameters.items() if n != "feeds"}
            out.append({verb: {**(more if verb == "mix" else {}), **told, "sources": inner}})
            continue
        fn = verbs().get(verb) or sources()[verb]
        if verb == "split":
            out.append({verb: {"seed": 0, **told}})
            continue
        parameters = {n: p for n, p in inspect.signature(fn).parameters.items() if n != "self"}
        named = arguments(fn, told, verb)
        out.append({verb: {n: named.get(n, p.default) for n, p in parameters.items()}})
    return out
