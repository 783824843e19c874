"""`tw.load_config`: feeds and loaders from a file, with words of the command line and of the environment over it.

Decides which setting wins (command line, environment, file, default), how a dotted word finds its place, and what the
resolved whole is. The words of stages are those of `feed.config`, the words of loaders those of `tw.Loader`.
"""

import copy
import inspect
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from thalweg.bind.loader import Loader
from thalweg.core.errors import ConfigError, nearest
from thalweg.core.state import digest
from thalweg.core.topology import Topology
from thalweg.feed.config import arguments, config_of, feed_of, openers_of, resolved, sources, verbs
from thalweg.feed.feed import Feed
from thalweg.feed.join import concat, mix
from thalweg.feed.named import build
from thalweg.store.settings import import_beside, parse_settings, read_settings, refuse_unknown

LOADER = "loader"
PREFIX = "THALWEG_"


class Config:
    """Feeds and loaders by name, as a file and the words over it describe them.

    Args:
        settings: {name: [stages], ..., "loader": {name: settings}}.
        where: of the file, for errors.

    Raises:
        ConfigError: an unknown word, with the nearest right one.
    """

    def __init__(self, settings: Mapping[str, Any], where: str = "settings") -> None:
        self.settings, self.where = dict(settings), where
        self.names = tuple(name for name in self.settings if name != LOADER)
        loaders: Any = self.settings.get(LOADER) or {}
        if not isinstance(loaders, Mapping):
            raise ConfigError("loader holds settings by the name of a feed", where=where, fix="loader: {train: {...}}")
        for name in self.names:
            if not isinstance(self.settings[name], list):
                fix = nearest(name, [LOADER]) if isinstance(self.settings[name], Mapping) else "a list of stages"
                raise ConfigError(f"{name!r} is no list of stages", where=where, fix=fix)
        refuse_unknown(loaders, self.names, "a loader for the unknown feed", where)
        self.loaders: dict[str, dict[str, Any]] = {str(k): dict(v or {}) for k, v in loaders.items()}
        known = [p for p in inspect.signature(Loader).parameters if p != "feed"]
        for name, told in self.loaders.items():
            refuse_unknown(told, known, "Loader takes no", f"{where}, loader.{name}")
        self._feeds: dict[str, Feed] = {}

    def feed(self, name: str) -> Feed:
        """Build the feed of a name, once.

        Raises:
            ConfigError: no such name, or stages that cannot be right.
        """
        refuse_unknown([name], self.names, "no feed", self.where)
        if name not in self._feeds:
            self._feeds[name] = feed_of(self.settings[name], f"{self.where}, {name}")
        return self._feeds[name]

    def loader(self, name: str, **more: Any) -> Loader:
        """Make a loader of the feed of a name.

        Args:
            name: of the feed.
            more: settings of `tw.Loader` over those of the file, such as `device=` and `topology=`.
        """
        told = {**build(self.loaders.get(name, {}), f"{self.where}, loader.{name}"), **more}
        if isinstance(told.get("topology"), Mapping):
            told["topology"] = Topology(**told["topology"])
        made = Loader(self.feed(name), **told)
        made.settings = self.resolved()
        if told.get("ledger") is not None:
            _keep(made.settings, Path(str(told["ledger"])))
        return made

    def default(self) -> str:
        """Name the feed that is meant where none is named: the only one, else "train".

        Raises:
            ConfigError: several, and none is called train.
        """
        if len(self.names) == 1 or "train" in self.names:
            return "train" if "train" in self.names else self.names[0]
        raise ConfigError(f"{len(self.names)} feeds, none called 'train'", where=self.where, fix=f"{self.where}:NAME")

    def to_dict(self) -> dict[str, Any]:
        """Give the settings in force, in the form of a file."""
        return copy.deepcopy(self.settings)

    def resolved(self) -> dict[str, Any]:
        """Give the settings in force with every default filled in."""
        defaults = {n: p.default for n, p in inspect.signature(Loader).parameters.items() if n != "feed"}
        out: dict[str, Any] = {name: resolved(config_of(self.feed(name))) for name in self.names}
        out[LOADER] = {name: {**defaults, **self.loaders.get(name, {})} for name in self.names}
        return out

    def __str__(self) -> str:
        """Write the settings in force as YAML."""
        import yaml  # noqa: PLC0415

        return str(yaml.safe_dump(self.settings, sort_keys=False, allow_unicode=True))


def load_config(
    path: str | os.PathLike[str], words: Sequence[str] = (), *, environ: Mapping[str, str] | None = None
) -> Config:
    """Read feeds and loaders from YAML or JSON.

    Args:
        path: of the file; modules that it names may lie beside it.
        words: "train.pack.capacity=4096", "loader.train.seed=3"; a verb used twice is addressed by its place
            ("train.1.workers=8", counted from 0).
        environ: where THALWEG_LOADER__TRAIN__SEED=3 and its like are looked for; None: this process's.

    Raises:
        InputError: there is no such file.
        ConfigError: an unknown word anywhere, with the nearest right one; a word without a place.
    """
    where = os.fspath(path)
    settings = read_settings(where)
    import_beside(where)
    env = os.environ if environ is None else environ
    for key in sorted(k for k in env if k.startswith(PREFIX) and "__" in k):
        _set(settings, key.removeprefix(PREFIX).split("__"), env[key], f"environment, {key}")
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise ConfigError(f"{word!r} is no setting", where="command line", fix="write name.stage.setting=value")
        _set(settings, name.split("."), value, f"command line, {name}")
    return Config(settings, where)


def _set(settings: dict[str, Any], path: list[str], text: str, where: str) -> None:
    """Put a value at a dotted place."""
    value = parse_settings(text, where)
    first = _key(path[0], [*settings, LOADER], where)
    if len(path) == 1:
        raise ConfigError(f"{first!r} alone is no setting", where=where, fix=f"say {first}.STAGE.SETTING")
    if first == LOADER:
        if len(path) != 3:
            raise ConfigError("a loader's setting has three words", where=where, fix="loader.train.seed=3")
        section = settings.setdefault(LOADER, {})
        name = _key(path[1], [k for k in settings if k != LOADER], where)
        known = [p for p in inspect.signature(Loader).parameters if p != "feed"]
        section[name] = {**(section.get(name) or {}), _key(path[2], known, where): value}
        return
    _in_stages(settings, first, path[1:], value, where)


def _key(word: str, known: Sequence[str], where: str) -> str:
    """Find a word among the known ones, whatever its case (the environment has capitals)."""
    found = next((k for k in known if k == word), None) or next((k for k in known if k.lower() == word.lower()), None)
    if found is None:
        raise ConfigError(f"unknown word {word!r}", where=where, fix=nearest(word.lower(), dict.fromkeys(known)))
    return found


def _in_stages(holder: Any, key: Any, path: list[str], value: Any, where: str) -> None:
    """Put a value into a list of stages, or into one stage that stands without a list."""
    stages = holder[key] if isinstance(holder[key], list) else [holder[key]]
    names = [next(iter(s)) if isinstance(s, Mapping) else str(s) for s in stages]
    if path[0].isdigit():
        if int(path[0]) >= len(stages):
            raise ConfigError(f"there is no stage {path[0]}", where=where, fix=f"0 to {len(stages) - 1}")
        at = int(path[0])
    else:
        verb = _key(path[0], names, where)
        if names.count(verb) > 1:
            places = [str(i) for i, n in enumerate(names) if n == verb]
            raise ConfigError(f"{verb!r} stands at {', '.join(places)}", where=where, fix=f"say its place: {places[0]}")
        at = names.index(verb)
    verb, rest = names[at], path[1:]
    told: Any = stages[at][verb] if isinstance(stages[at], Mapping) else None
    if not rest:
        stages[at] = {verb: value}
    elif verb in {"mix", "concat"} and _key(rest[0], _joined(verb), where) == "sources":
        name = _key(rest[1] if len(rest) > 1 else "", list(told["sources"]), where)
        _in_stages(told["sources"], name, rest[2:], value, where)
    else:
        known = _joined(verb) if verb in {"mix", "concat"} else _settings_of(verb)
        told = told if verb in {"mix", "concat"} else arguments_or_empty(verb, told, where)
        stages[at] = {verb: _nested(dict(told), [_key(rest[0], known, where), *rest[1:]], value, where)}
    holder[key] = stages if isinstance(holder[key], list) else stages[0]


def _nested(told: dict[str, Any], path: list[str], value: Any, where: str) -> dict[str, Any]:
    """Put a value below one setting, through mappings that are there."""
    if len(path) == 1:
        return {**told, path[0]: value}
    inner = told.get(path[0])
    if not isinstance(inner, Mapping):
        raise ConfigError(f"{path[0]!r} holds no settings of its own", where=where, fix=f"set {path[0]} as a whole")
    known = [k for k in inner if k.lower() == path[1].lower()]
    return {**told, path[0]: _nested(dict(inner), [*(known or path[1:2]), *path[2:]], value, where)}


def _joined(verb: str) -> list[str]:
    names = [n for n in inspect.signature(mix if verb == "mix" else concat).parameters if n != "feeds"]
    return [*names, "sources"]


def _settings_of(verb: str) -> list[str]:
    if verb == "split":
        return ["shares", "part", "seed"]
    fn = verbs().get(verb) or (openers_of(verb) if verb in sources() else None)
    return [] if fn is None else [n for n in inspect.signature(fn).parameters if n != "self"]


def arguments_or_empty(verb: str, told: Any, where: str) -> dict[str, Any]:
    """Give what a stage was told by name, also where one value stood alone; unknown verbs are refused later."""
    fn = verbs().get(verb) or sources().get(verb)
    if told is None or fn is None or isinstance(told, Mapping):
        return dict(told or {})
    return arguments(fn, told, where)


def _keep(settings: Mapping[str, Any], folder: Path) -> None:
    """Write the resolved whole beside the ledger, under a name that says its content: two legs may differ."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"settings.{digest(settings)[:12]}.json"
    if not target.exists():
        made = target.with_suffix(f".{os.getpid()}.tmp")
        made.write_text(json.dumps(settings, indent=2, ensure_ascii=False, default=str), encoding="utf-8")
        made.replace(target)
