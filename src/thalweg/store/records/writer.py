"""`create_records`: rows in, a new generation of a record set out, whole after the block and nothing after an error.

Decides what may be written where, and after which generation it appears. Knows no bytes of a shard.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from thalweg.core.errors import ConfigError, RecordsError
from thalweg.core.sizes import to_bytes
from thalweg.store import fs
from thalweg.store.quarantine import Quarantine
from thalweg.store.records import place
from thalweg.store.records.generation import publish
from thalweg.store.records.manifest import Manifest, checked_lineage
from thalweg.store.records.part import PartFiles, parse_schema
from thalweg.store.records.rowwriter import RowWriter
from thalweg.store.remote import is_url


class RecordsWriter(RowWriter):
    """Writes one generation of a record set. Use it as a context manager; see `create_records`."""

    def __init__(
        self,
        folder: Path,
        *,
        base: Manifest | None,
        replace: bool,
        lineage: Mapping[str, Any],
        on_error: str,
        options: Mapping[str, Any],
    ) -> None:
        self.path, self._base, self._replace, self._lineage = folder, base, replace, dict(lineage)
        self.prefix = place.new_prefix()
        life = fs.Life(place.life_of(folder, self.prefix), new=True).begin()
        files = PartFiles(folder, self.prefix, declared=parse_schema(options["schema"]), **options["files"])
        bad = Quarantine(folder / f"{self.prefix}.quarantine.jsonl") if on_error == "quarantine" else None
        super().__init__(files, options["schema"], bad, life)
        self.manifest: Manifest | None = None

    def _finish(self) -> None:
        quarantined = 0 if self._quarantine is None else self._quarantine.close()
        self.manifest = self._publish(self._files.finish(self._lineage, quarantined))

    def _publish(self, own: Manifest) -> Manifest:
        return publish(self.path, own, self._base, self.prefix, replace=self._replace, sync=self._files.sync)


def create_records(  # noqa: PLR0917
    path: str | Path,
    schema: Mapping[str, Any] | None = None,
    shard_bytes: int | str = "256MB",
    append: bool = False,
    overwrite: bool = False,
    on_error: Literal["raise", "quarantine"] = "raise",
    *,
    vocab_size: int | None = None,
    facts: Sequence[str] = (),
    lineage: Mapping[str, Any] | None = None,
    sync: bool = True,
    storage_options: Mapping[str, Any] | None = None,
) -> RecordsWriter:
    """Open a record set for writing, as a context manager: its rows become a set, whole, after the block.

    Args:
        path: directory of the set; made if it is not there.
        schema: column to type, such as {"input_ids": "int32[*]", "text": "str"}. None: types are found from the
            values, column by column, and a later value of another type changes no earlier one.
        shard_bytes: size at which a shard ends, bytes or "256MB"; memory stays far below it.
        append: add a generation to the set; earlier ones stay openable.
        overwrite: replace the set; the old one stays until the new one is whole.
        on_error: "quarantine": bad rows go to a file in the set with the reason and are counted.
        vocab_size: refuse ids at or above it.
        facts: columns of numbers that are also kept beside the data, in 4 bytes a row.
        lineage: where the rows come from: tokenizer digest, pad_id, eos_id, inputs, config.
        sync: survive a power loss, not only a kill.
        storage_options: for fsspec, where the path is a URL. The set is written on this machine first.

    Raises:
        RecordsError: the path is in use and neither append nor overwrite is said, or another tokenizer made the set.
        ConfigError: an option that cannot be, or a lineage that JSON does not have.
    """
    if append and overwrite:
        raise ConfigError("append and overwrite exclude each other")
    if on_error not in ("raise", "quarantine"):
        raise ConfigError(f"on_error={on_error!r}", fix='say "raise" or "quarantine"')
    about = checked_lineage(lineage)
    if vocab_size is not None:
        about.setdefault("vocab_size", vocab_size)
    files = {"shard_bytes": to_bytes(shard_bytes), "facts": tuple(facts), "sync": sync}
    if is_url(str(path)):
        from thalweg.store.records.farwrite import FarWriter, start  # noqa: PLC0415  (asks for fsspec)

        home, base = start(str(path), storage_options or {}, changes=append or overwrite)
        about, vocab = agreed(base if append else None, about, str(path))
        options = {"schema": schema, "files": {**files, "vocab_size": vocab, "sync": False}}
        return FarWriter(home, base=base, replace=overwrite, lineage=about, on_error=on_error, options=options)
    folder = Path(path)
    place.make_folder(folder)
    place.sweep(folder)
    newest = place.generations(folder)
    declared = [g for g in place.declarations(folder) if g not in newest]
    if (newest or declared) and not (append or overwrite):
        raise RecordsError("the path is in use", where=str(folder), fix="append=True, overwrite=True or another path")
    if not newest and any(not p.name.startswith(".") for p in folder.iterdir()) and not declared and not overwrite:
        foreign = sorted(p.name for p in folder.iterdir() if not place.is_ours(p.name))
        if foreign:
            raise RecordsError(
                f"the directory holds other files, such as {foreign[0]!r}", where=str(folder), fix="choose an empty one"
            )
    base = place.read_manifest(place.manifest_path(folder, newest[-1])) if newest else None
    about, vocab = agreed(base if append else None, about, str(folder))
    options = {"schema": schema, "files": {**files, "vocab_size": vocab}}
    return RecordsWriter(folder, base=base, replace=overwrite, lineage=about, on_error=on_error, options=options)


def agreed(base: Manifest | None, about: dict[str, Any], where: str) -> tuple[dict[str, Any], int | None]:
    """Give the lineage of rows that follow those of `base`, and the size of their vocabulary.

    Raises:
        RecordsError: they come from another tokenizer or template.
    """
    if base is None:
        return about, about.get("vocab_size")
    for key in ("tokenizer", "vocab_size", "pad_id", "eos_id", "template"):
        if key in about and key in base.lineage and about[key] != base.lineage[key]:
            raise RecordsError(
                f"{key} is {about[key]!r} here and {base.lineage[key]!r} in the set",
                where=where,
                fix="append what the same tokenizer made, or write another set",
            )
    both = {**base.lineage, **about}
    return both, both.get("vocab_size")
