"""Samples into one record set, each rank writing its own part.

Decides what a set learns of the steps before it (tokenizer, special ids) and when parts are merged. Knows no format:
that is the business of `thalweg.store.records`.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thalweg.core.errors import ConfigError
from thalweg.steps.folder import FolderLike, OutputFolder
from thalweg.steps.step import PipelineStep
from thalweg.store.records import PartWriter, declare_parts, merge_parts
from thalweg.store.records.farparts import drop_far_sets, merge_far_parts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from thalweg.steps.step import Documents

CHUNK = 256  # samples between two looks at the counts


class RecordsWriter(PipelineStep):
    """Writes samples (dicts of columns) into a record set, and lets them pass.

    Args:
        output_folder: directory of the set, or a URL.
        schema, shard_bytes, vocab_size, facts, lineage: as for `tw.create_records`. Tokenizer digest and folder,
            vocabulary size and special ids are taken from the encoding step before this one where not given.

    Every rank writes its part; when all ranks are complete the parts become one set, in the order of the ranks.
    """

    type = "writer"
    name = "Records writer"
    names_carry_generation = True

    def __init__(
        self,
        output_folder: FolderLike,
        *,
        schema: Mapping[str, Any] | None = None,
        shard_bytes: int | str = "256MB",
        vocab_size: int | None = None,
        facts: Sequence[str] = (),
        lineage: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.output_folder: OutputFolder = OutputFolder.of(output_folder)
        self.schema, self.shard_bytes, self.facts = schema, shard_bytes, tuple(facts)
        self.lineage = dict(lineage or {})
        if vocab_size is not None:
            self.lineage["vocab_size"] = vocab_size

    @property
    def identity(self) -> dict[str, Any]:
        """Name what decides the records: all arguments but notes of their origin, which may name places."""
        return {name: value for name, value in self.arguments.items() if name != "lineage"}

    def inherit(self, before: list[Any]) -> None:
        """Learn from the steps before: called when the chain is put together."""
        for step in reversed(before):
            found = lineage_of(step)
            if found:
                self.lineage = found | self.lineage
                return

    def run(self, data: Documents, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        """Write all samples of this rank and let them pass; the part is whole when the last one has."""
        folder = self.output_folder
        if folder.stage is None and not folder.local:
            raise ConfigError("a remote folder is written through an executor only", where=folder.path)
        writer = PartWriter(
            folder.path,
            rank,
            world_size,
            folder=folder.stage,
            generation=None if folder.local else folder.generation,
            schema=self.schema,
            shard_bytes=self.shard_bytes,
            vocab_size=self.lineage.get("vocab_size"),
            facts=self.facts,
            lineage=self.lineage,
            sync=folder.stage is None,
        )
        samples = iter(data or ())
        with writer:
            while batch := list(islice(samples, CHUNK)):
                for sample in batch:
                    writer.write(sample)
                self.stats["tokens"].update_many([len(s["input_ids"]) for s in batch if "input_ids" in s])
                yield from batch
        if folder.stage is None and world_size == 1:
            merge_parts(folder.path)

    def merge_outputs(self, world_size: int, generation: int = 0) -> None:
        """Make one set of all parts; any process may, at any time after all ranks are complete."""
        folder = self.output_folder
        if not folder.local:
            merge_far_parts(folder.path, world_size, generation, folder.options)
            return
        # sets of older generations of the run have been moved away
        declare_parts(self.output_folder.path, world_size)
        merge_parts(self.output_folder.path)

    def restart_outputs(self, aside: Path, generation: int) -> None:
        """Move a set of an abandoned beginning of this run away; of a remote one, what it is opened by."""
        if not self.output_folder.local:
            drop_far_sets(self.output_folder.path, generation, self.output_folder.options)
            return
        path = Path(self.output_folder.path)
        if any(path.glob("manifest.*")) or any(path.glob("parts.*")):
            aside.parent.mkdir(parents=True, exist_ok=True)
            path.rename(aside)

    def name_pattern(self, rank: int) -> str:
        """Give a pattern of all file names of this rank's part."""
        return rf"part-\d+-{rank:05d}\..*|part\.\d+\.{rank:05d}"


def lineage_of(step: Any) -> dict[str, Any]:
    """Read what an encoding step knows of its tokenizer; empty for other steps."""
    encoder = getattr(step, "encoder", None)
    vocabulary = getattr(encoder, "vocabulary", None)
    if encoder is None or vocabulary is None:
        return {}
    from thalweg.encode.tokens import tokenizer_digest  # noqa: PLC0415  (steps without an encoder need none of it)

    tokenizer = getattr(encoder, "words", None) or encoder.tokenizer
    found: dict[str, Any] = {"tokenizer": tokenizer_digest(tokenizer), "encoder": encoder.digest}
    found |= {"vocab_size": vocabulary.size, "eos_id": vocabulary.eos_id, "pad_id": vocabulary.pad_id}
    found["tokenizer_path"] = folder_of(step, tokenizer)
    return {name: value for name, value in found.items() if value is not None}


def folder_of(step: Any, tokenizer: Any) -> str | None:
    """Give the folder of a step's tokenizer, so that who looks at the records finds it; None for a hub name."""
    given = step.arguments.get("tokenizer_or_path") if isinstance(step, PipelineStep) else None
    named = given if isinstance(given, str | Path) else getattr(tokenizer, "name_or_path", None)
    return str(Path(named).resolve()) if isinstance(named, str | Path) and named and Path(named).is_dir() else None
