"""The demo's offline half: raw text to token records, by a pipeline of eight tasks on two workers.

Decides the filters and the encoders, and starts afresh where records of another version lie. Knows no training.
"""

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import thalweg as tw
from thalweg.cli.demo.corpus import Corpus
from thalweg.core.document import Document
from thalweg.core.errors import RunError
from thalweg.core.stats import PipelineStats
from thalweg.encode.tokens import qwen_tokenizer
from thalweg.run import LocalPipelineExecutor
from thalweg.steps import EncodeChat, EncodeText, JsonlReader, LambdaFilter, LengthFilter, RecordsWriter

TASKS, WORKERS = 8, 2
PAGE = (200, 30_000)  # characters of a page, shortest and longest
ANSWER = (20, 4_000)  # characters of an answer
FEWEST_LETTERS = 0.6  # below this share of letters and white space a page is a table of numbers


@dataclass(frozen=True, slots=True)
class Prepared:
    """A record set and its books: documents in and out, dropped by reason."""

    path: Path
    taken: int
    out: int
    dropped: dict[str, int]
    tokens: int
    idle_second: bool  # a second launch found nothing to do


def enough_letters(document: Document) -> tuple[bool, str] | bool:
    """Drop tables: pages that are mostly digits and signs."""
    text = document.text
    letters = sum(map(str.isalpha, text)) + sum(map(str.isspace, text))
    return letters >= FEWEST_LETTERS * len(text) or (False, "few_letters")


def says_something(document: Document) -> tuple[bool, str] | bool:
    """Drop answers that only send the reader elsewhere."""
    elsewhere = ("see ", "alias for ", "same as ", "like ", "deprecated")
    return (False, "sends_elsewhere") if document.text.lower().startswith(elsewhere) else True


def pipelines(root: Path, raw: Corpus, capacity: int) -> dict[str, LocalPipelineExecutor]:
    """Build both pipelines: reader, two filters, encoder, records."""
    tokenizer = str(qwen_tokenizer())
    middle: dict[str, Sequence[Any]] = {
        "pages": (LengthFilter(*PAGE), LambdaFilter(enough_letters), EncodeText(tokenizer)),
        "chat": (LengthFilter(*ANSWER), LambdaFilter(says_something), EncodeChat(tokenizer, max_length=capacity)),
    }
    folders = {"pages": raw.pages, "chat": raw.chat}
    named = {"tokenizer_path": tokenizer}  # so that `thalweg inspect` shows text
    return {
        name: LocalPipelineExecutor(
            pipeline=[
                JsonlReader(str(folders[name])),
                *steps,
                RecordsWriter(str(root / "records" / name), lineage=named),
            ],
            tasks=TASKS,
            workers=WORKERS,
            logging_dir=root / "logs" / name,
        )
        for name, steps in middle.items()
    }


def records(root: Path, raw: Corpus, capacity: int, say: Callable[[str], None]) -> dict[str, Prepared]:
    """Make both record sets, or find that they are made; then launch each again and see that it has nothing to do."""
    prepared: dict[str, Prepared] = {}
    for name, executor in pipelines(root, raw, capacity).items():
        missing = executor.get_incomplete_ranks()
        say(f"records: {name}, {len(missing)} of {TASKS} tasks to run on {WORKERS} workers")
        stats = _run(executor, root, name, say)
        idle = not executor.get_incomplete_ranks() and executor.run().to_dict() == stats.to_dict()
        made = tw.open_records(root / "records" / name)
        dropped: dict[str, int] = {}
        for step in stats:
            dropped |= step.tally.dropped
        taken, out = stats[0].tally.out, stats[-1].tally.out
        prepared[name] = Prepared(root / "records" / name, taken, out, dropped, int(made.num_tokens), idle)
        say(f"records: {name}, {taken:,} documents in, {out:,} out, {made.num_tokens:,} tokens")
    return prepared


def _run(executor: LocalPipelineExecutor, root: Path, name: str, say: Callable[[str], None]) -> PipelineStats:
    stale = executor.logging_dir.exists()
    try:
        return executor.run()
    except RunError as error:
        if not stale:
            raise
        say(f"records: making {name} again, since {error.what}")
        for folder in (executor.logging_dir, root / "records" / name):
            shutil.rmtree(folder, ignore_errors=True)
        return executor.run()


def documents(path: Path) -> Iterator[NDArray[np.int32]]:
    """Give the tokens of each record, int32 (n,)."""
    for sample in tw.open_records(path, columns=["input_ids"]):
        yield sample["input_ids"]
