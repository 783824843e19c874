"""Documents become samples, offline: the encoders of `thalweg.encode` over batches of a stream.

Decides how many documents go to the tokenizer at once, how a document becomes a record for an encoder, and what each
sample carries with it. What does not become a sample is counted under its reason. Knows no writer.
"""

import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from functools import partial
from hashlib import blake2b
from itertools import islice
from typing import Any, ClassVar, Generic, TypeVar

from thalweg.core.document import ROW, SOURCE, UNIT, Document
from thalweg.core.errors import ConfigError
from thalweg.core.sample import Sample
from thalweg.encode.chat import ChatEncoder
from thalweg.encode.errors import EncodeError
from thalweg.encode.layouts import recognise
from thalweg.encode.text import TextEncoder
from thalweg.encode.tokens import tokenizer_digest
from thalweg.steps.readers.base import BaseReader
from thalweg.steps.step import Documents, PipelineStep

_Encoder = TypeVar("_Encoder", TextEncoder, ChatEncoder)


class EncodeStep(PipelineStep, Generic[_Encoder]):
    """What both steps share: batches in, samples out, every drop under its reason.

    Args:
        encoder: what makes a sample of a document.
        batch_size: documents given to the tokenizer at once.
    """

    type = "encode"
    _requires_dependencies: ClassVar[list[str | tuple[str, str]]] = ["transformers", "tokenizers", "jinja2"]

    def __init__(self, encoder: _Encoder, batch_size: int) -> None:
        super().__init__()
        if batch_size < 1:
            raise ConfigError(f"batch_size={batch_size} is no size", fix="give 1 or more")
        self.encoder: _Encoder = encoder
        self.batch_size = batch_size

    @property
    def identity(self) -> dict[str, Any]:
        """Name what decides the samples: the settings, and the tokenizer by its content, wherever it lies."""
        settings = self.arguments.get("settings", {})
        shown = {k: v for k, v in settings.items() if k not in {"backend", "chat_template"}}
        whole = blake2b(self.encoder.digest.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        return {"tokenizer": tokenizer_digest(self.encoder.words), "settings": shown, "encoder": whole}

    @abstractmethod
    def encode(self, documents: list[Document]) -> "list[Sample | EncodeError]":
        """Encode a batch: for each document its sample, or the reason why it has none."""

    def run(self, data: Documents, rank: int = 0, world_size: int = 1) -> Iterator[Sample]:
        """Encode a stream of documents; nothing is read before the result is walked."""
        del rank, world_size
        stream = iter(data or ())
        while batch := list(islice(stream, self.batch_size)):
            with self.track_time("batch"):
                results = self.encode(batch)
            for document, result in zip(batch, results, strict=True):
                if isinstance(result, EncodeError):
                    self.drop(result.reason)
                    continue
                tokens = len(result["input_ids"])
                self.stat_update("tokens", value=tokens)
                yield {**result, **provenance(document)}


def provenance(document: Document) -> Sample:
    """Give what a sample keeps of its document: id, source, unit and row.

    The unit is where a part of the file `source` begins. Data with a column `source` of its own keeps that, and the
    unit names the file too, so that the sample can still be found there.
    """
    found: dict[str, Any] = {name: document.metadata.get(name) for name in (SOURCE, UNIT, ROW)}
    unit, file = str(found[UNIT] or ""), document.metadata.get("file_path")
    if file and file != found[SOURCE] and unit.isdecimal():
        unit = str(file) if int(unit) == 0 else f"{file}@{unit}"
    return {
        "id": document.id,
        SOURCE: str(found[SOURCE] or ""),
        UNIT: unit,
        ROW: int(found[ROW] if found[ROW] is not None else -1),
    }


class EncodeText(EncodeStep[TextEncoder]):
    """Encode the text of each document for pretraining: every token in the loss.

    Out: `input_ids` int32 (n,), `loss_spans` int32 (k, 2), `id`, `source`, `unit`, `row`. Documents without a token
    besides the ends are dropped as "empty text".

    Args:
        tokenizer_or_path: as `TextEncoder`, as are the keywords it takes.
        batch_size: documents given to the tokenizer at once.
    """

    name = "encode text"

    def __init__(self, tokenizer_or_path: Any, *, batch_size: int = 256, **settings: Any) -> None:
        super().__init__(TextEncoder(tokenizer_or_path, **settings), batch_size)

    def encode(self, documents: list[Document]) -> "list[Sample | EncodeError]":
        """Encode a batch."""
        texts = [d.text for d in documents]
        try:
            rows = list(self.encoder.encode_batch(texts))
        except EncodeError as error:
            if len(documents) > 1:  # one bad text must not take its neighbours with it
                return [self.encode([d])[0] for d in documents]
            return [error]
        out: list[Sample | EncodeError] = []
        for text, ids in zip(texts, rows, strict=True):
            if text:
                out.append({"input_ids": ids, "loss_spans": self.encoder.spans(len(ids))})
            else:
                out.append(EncodeError("the document has no text", reason="empty text"))
        return out


class EncodeChat(EncodeStep[ChatEncoder]):
    """Encode the conversation of each document: labels on what the assistant says.

    The record is the document's metadata; where that has no conversation, its text read as JSON. Out: `input_ids`
    int32 (n,), `loss_spans` int32 (k, 2), `loss_weights` float32 (k,) where a record gives weights, `id`, `source`,
    `unit`, `row`. Rows that are conversations need no text: in an executor, the reader before lets them pass. What a
    length limit takes is in the stats: "exchanges dropped", "answers cut".

    Args:
        tokenizer_or_path: as `ChatEncoder`, as are the keywords it takes.
        batch_size: conversations given to the tokenizer at once.
    """

    name = "encode chat"

    def __init__(self, tokenizer_or_path: Any, *, batch_size: int = 64, **settings: Any) -> None:
        super().__init__(ChatEncoder(tokenizer_or_path, **settings), batch_size)

    def inherit(self, before: list[Any]) -> None:
        """Let readers before this step pass conversations without text: called when the chain is put together."""
        for step in before:
            if isinstance(step, BaseReader):
                step.conversation = partial(holds_conversation, columns=self.encoder.columns)

    def encode(self, documents: list[Document]) -> "list[Sample | EncodeError]":
        """Encode a batch."""
        out: list[Sample | EncodeError] = []
        before = self.encoder.counts.copy()
        results = self.encoder.encode_batch([record_of(d) for d in documents])
        for what, many in (self.encoder.counts - before).items():  # what the length limit took
            self.stat_update(what, value=many)
        for result in results:
            if isinstance(result, EncodeError):
                out.append(result)
                continue
            sample: Sample = {"input_ids": result.ids, "loss_spans": result.spans, **result.more}
            if result.weights is not None:
                sample["loss_weights"] = result.weights
            out.append(sample)
        return out


def holds_conversation(document: Document, columns: Mapping[str, str | None] | None = None) -> bool:
    """Say whether a document's record has a layout that `ChatEncoder` knows, by its `columns`."""
    try:
        recognise(record_of(document), columns)
    except (EncodeError, ConfigError):
        return False
    return True


def record_of(document: Document) -> Mapping[str, Any]:
    """Make the record of a document: its metadata and id, or its text where that is a JSON object or list."""
    record: dict[str, Any] = {k: v for k, v in document.metadata.items() if k not in (SOURCE, UNIT, ROW)}
    record.setdefault("id", document.id)
    text = document.text.lstrip()
    if text[:1] in ("{", "["):
        try:
            inner: Any = json.loads(text)
        except ValueError:
            inner = None
        if isinstance(inner, dict):
            return {**inner, "id": document.id}
        if isinstance(inner, list):
            return {"messages": inner, "id": document.id}
    return record
