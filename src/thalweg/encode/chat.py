"""Conversations become tokens and labels: the model's own template, one rendering, the loss on what is trained.

Wires layouts, template, turns, guard, backend and spans together. Decides which turns are trained and what a
length limit removes. Knows no file and no batch.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.core.errors import ConfigError, nearest
from thalweg.core.sample import Sample
from thalweg.encode.backend import Backend, choose, reference
from thalweg.encode.conversation import Conversation, Message
from thalweg.encode.errors import EncodeError, record_id
from thalweg.encode.guard import Guard, moved, whole
from thalweg.encode.layouts import Layout, read, recognise
from thalweg.encode.spans import Spans, by_bytes, by_offsets, by_prefix, labels_of, tidy
from thalweg.encode.template import Template, TemplateRefusal, unmark
from thalweg.encode.tokens import Vocabulary, load_tokenizer, tokenizer_digest
from thalweg.encode.turns import Turns, find

TRAIN_ON = ("assistant", "last", "all")


@dataclass(slots=True)
class Drawn:
    """One conversation as the template wrote it: text, character spans in the loss, a weight for each."""

    text: str
    spans: Spans
    weights: list[float]
    pieces: list[tuple[str, int | None]] | None = None  # set where the text of a user holds a special token


@dataclass(slots=True)
class Encoded:
    """One conversation as tokens.

    Args:
        ids: int32 (n,).
        spans: int32 (k, 2), half-open token spans in the loss.
        weights: float32 (k,) weight of each span, None where all are 1.
        more: further columns.
    """

    ids: NDArray[np.int32]
    spans: NDArray[np.int32]
    weights: NDArray[np.float32] | None = None
    more: dict[str, Any] = field(default_factory=dict[str, Any])


class ChatEncoder:
    """Encode conversations for supervised training. Picklable; call it with a record.

    Args:
        tokenizer_or_path: a tokenizer of transformers with a chat template, its directory, or its hub name.
        columns: None finds a known layout; or names, such as {"messages": "conversations"} (see `encode.layouts`).
        train_on: "assistant": all answers, with the token that ends each; "last": the last answer; "all": everything.
        max_length: tokens at most. Longer conversations lose their oldest exchanges, whole; system and last exchange
            stay; a last answer that is still too long is cut and keeps no end token.
        enable_thinking: None leaves thoughts as they are; True asks the template for them; False takes thoughts out
            and leaves the empty thought of the prompt untrained.
        chat_template: jinja text or path of a .jinja file; None: the tokenizer's own.
        template_variables: what the template may read further, such as {"date_string": "26 Jul 2024"}.
        split_special_tokens: True (default): what looks like a special token in a message stays text.
        backend: "auto" (fastest that proves equal on the first texts), "tokenizers", "fastokens" or "python".

    Raises:
        ConfigError: no chat template, or one that cannot write user and assistant turns; an unknown word.
    """

    whole_sample = True  # the result is the whole sample: other columns do not stay beside it

    def __init__(
        self,
        tokenizer_or_path: Any,
        columns: Mapping[str, str | None] | None = None,
        train_on: str = "assistant",
        max_length: int | None = None,
        enable_thinking: bool | None = None,
        *,
        chat_template: str | None = None,
        template_variables: Mapping[str, Any] | None = None,
        split_special_tokens: bool = True,
        backend: str = "auto",
    ) -> None:
        if train_on not in TRAIN_ON:
            raise ConfigError(f"unknown train_on {train_on!r}", where="train_on=", fix=nearest(train_on, TRAIN_ON))
        self.tokenizer = load_tokenizer(tokenizer_or_path)
        self.columns, self.train_on, self.max_length = columns, train_on, max_length
        self.enable_thinking, self.split_special_tokens = enable_thinking, split_special_tokens
        self.vocabulary = Vocabulary.of(self.tokenizer)
        self.template = Template(_source(self.tokenizer, chat_template), self._variables(template_variables))
        self.guard = Guard(self.vocabulary.special)
        self.turns = Turns.learn(self.template, self.guard.pattern)
        self.counts: Counter[str] = Counter()
        self._layouts: dict[tuple[str, ...], Layout] = {}
        self._name = backend
        self._backend: Backend | None = None if backend == "auto" else choose(self.tokenizer, backend, ())
        self._cuttable: bool | None = None

    def _variables(self, more: Mapping[str, Any] | None) -> dict[str, Any]:
        named: dict[str, Any] = {
            k: v for k, v in getattr(self.tokenizer, "special_tokens_map", {}).items() if isinstance(v, str)
        }
        if self.enable_thinking is not None:
            named["enable_thinking"] = self.enable_thinking
        return {**named, **(more or {})}

    def __getstate__(self) -> dict[str, Any]:
        """Leave the engines behind: each process makes and proves its own."""
        return {**self.__dict__, "_backend": None, "counts": Counter()}

    @property
    def digest(self) -> str:
        """Name all that decides the samples: settings, template and tokenizer."""
        settings = (self.columns, self.train_on, self.max_length, self.split_special_tokens, self.template.variables)
        return f"{tokenizer_digest(self.tokenizer)}:{settings!r}:{self.template.source}"

    def __call__(self, record: Mapping[str, Any]) -> Sample:
        """Encode one record.

        Returns:
            `input_ids` int32 (n,) and `labels` int64 (n,), unshifted; `id` where there was one.

        Raises:
            EncodeError: a record that no rule accepts; it names the record.
        """
        encoded = self.encode_batch([record])[0]
        if isinstance(encoded, EncodeError):
            raise encoded
        return self.sample(encoded, record)

    def sample(self, encoded: Encoded, record: Mapping[str, Any]) -> Sample:
        """Write an encoded record as a sample of the online feed."""
        out: Sample = {"input_ids": encoded.ids, "labels": labels_of(encoded.ids, encoded.spans), **encoded.more}
        if encoded.weights is not None:
            out["loss_weights"] = encoded.weights
        if "id" in record:
            out["id"] = record["id"]
        return out

    def encode_batch(self, records: Sequence[Mapping[str, Any]]) -> "list[Encoded | EncodeError]":
        """Encode records together: each gives its sample or the reason why it has none."""
        drawn: list[Drawn | EncodeError] = []
        kept: list[Conversation | None] = []
        for record in records:
            try:
                conversation = read(record, self._layout(record))
                drawn.append(self._draw(conversation))
                kept.append(conversation)
            except EncodeError as error:
                drawn.append(error.named(record_id(record)))
                kept.append(None)
        good = [d for d in drawn if isinstance(d, Drawn)]
        encoded = iter(self._tokens(good))
        out: list[Encoded | EncodeError] = []
        for record, source, d in zip(records, kept, drawn, strict=True):
            result = d if isinstance(d, EncodeError) else next(encoded)
            if isinstance(result, Encoded) and source is not None:
                result = self._fit(result, source)
            out.append(result.named(record_id(record)) if isinstance(result, EncodeError) else result)
        return out

    def _layout(self, record: Mapping[str, Any]) -> Layout:
        key = tuple([k for k, v in record.items() if v is not None])
        if key not in self._layouts:
            self._layouts[key] = recognise(record, self.columns)
        return self._layouts[key]

    def _draw(self, conversation: Conversation) -> Drawn:
        """Render a conversation and find what is trained in it."""
        messages = [self._without_thought(m) for m in conversation.messages]
        written, tools = [m.for_template(parts=self.turns.parts) for m in messages], conversation.tools
        dangerous = self.split_special_tokens and self.guard.is_dangerous([written, tools or []])
        if dangerous:
            written, tools = self.guard.cut(written), self.guard.cut(tools)
        marked, written = self._render(written, tools)
        text, spans = unmark(marked)
        if not self.template.marked:
            spans = find(self.template, self.turns, written, tools, text)
        spans, weights = self._chosen(text, spans, messages)
        if not dangerous:
            return Drawn(text, spans, weights)
        return Drawn(whole(text), moved(text, spans), weights, self.guard.pieces(text))

    def _render(self, written: list[dict[str, Any]], tools: Any) -> tuple[str, list[dict[str, Any]]]:
        """Render; where the template refuses the order of roles, once more with neighbours of one role joined."""
        try:
            return self.template.render(written, tools), written
        except TemplateRefusal as error:
            joined = _joined(written)
            if len(joined) < len(written):
                try:
                    return self.template.render(joined, tools), joined
                except TemplateRefusal:
                    pass
            raise EncodeError(f"the chat template refuses it: {error}", reason="refused by the template") from None

    def _without_thought(self, message: Message) -> Message:
        if self.enable_thinking is not False or message.role != "assistant":
            return message
        content = message.content
        if isinstance(content, str) and "</think>" in content:
            content = content.rpartition("</think>")[2].lstrip("\n")
        return Message(message.role, content, None, message.tool_calls, message.weight, message.more)

    def _chosen(self, text: str, spans: Spans, messages: list[Message]) -> tuple[Spans, list[float]]:
        """Keep the spans that are trained, with their weights."""
        if self.train_on == "all":
            return [(0, len(text))], [1.0]
        if self.enable_thinking is False and self.turns.thought:
            n = len(self.turns.thought)
            spans = [(a + n, b) if text.startswith(self.turns.thought, a) else (a, b) for a, b in spans]
        answers = [m for m in messages if m.role == "assistant"]
        weights = [1.0 if m.weight is None else m.weight for m in answers]
        if len(spans) != len(answers):
            if self.train_on == "last" or any(w != 1 for w in weights):
                raise EncodeError(
                    f"{len(answers)} answers and {len(spans)} marked blocks: none can be left out",
                    reason="marked blocks are not turns",
                )
            weights = [1.0] * len(spans)
        if self.train_on == "last":
            return spans[-1:], weights[-1:]
        return [s for s, w in zip(spans, weights, strict=True) if w > 0], [w for w in weights if w > 0]

    def _tokens(self, drawn: list[Drawn]) -> "list[Encoded | EncodeError]":
        """Encode renderings together and turn their spans into token spans."""
        if not drawn:
            return []
        if self._backend is None:
            self._backend = choose(self.tokenizer, self._name, [d.text[:4096] for d in drawn[:32]])
        plain = [d for d in drawn if d.pieces is None]
        out: dict[int, Encoded | EncodeError] = {}
        try:
            ids, offsets = self._backend.encode([d.text for d in plain], special=True)
        except (UnicodeEncodeError, TypeError):
            if len(drawn) > 1:
                return [self._tokens([d])[0] for d in drawn]
            return [EncodeError("the text holds a lone surrogate", reason="not valid Unicode")]
        widths = self.vocabulary.widths
        spans: Sequence[Spans | None] = [None] * len(plain)
        if widths is not None and plain:
            spans = by_bytes((ids, offsets), [d.text for d in plain], [d.spans for d in plain], widths)
        for i, d in enumerate(plain):
            out[id(d)] = self._finish(d, ids[offsets[i] : offsets[i + 1]], spans[i])
        for d in drawn:
            if d.pieces is not None:
                out[id(d)] = self._pieced(d)
        return [out[id(d)] for d in drawn]

    def _finish(self, drawn: Drawn, ids: NDArray[np.int32], spans: Spans | None) -> "Encoded | EncodeError":
        assert self._backend is not None
        try:
            if spans is None and getattr(self.tokenizer, "backend_tokenizer", None) is not None:
                again, places = reference(self.tokenizer).offsets(drawn.text)
                spans = by_offsets(places, drawn.spans) if np.array_equal(again, ids) else None
            if spans is None:
                spans = by_prefix(self._backend, drawn.text, ids, drawn.spans)
        except EncodeError as error:
            return error
        return self._closed(ids, spans, drawn.weights)

    def _pieced(self, drawn: Drawn) -> "Encoded | EncodeError":
        """Encode a rendering that was cut at its special tokens, its texts with special tokens unread."""
        assert self._backend is not None
        assert drawn.pieces is not None
        if self._cuttable is None:
            probe, _ = unmark(
                self.template.render([{"role": "user", "content": " a b\n"}, {"role": "assistant", "content": "c"}])
            )
            self._cuttable = np.array_equal(
                self._cut_ids(self.guard.pieces(probe)), self._backend.encode([probe], special=True)[0]
            )
        widths = self.vocabulary.widths
        if widths is None or not self._cuttable:
            return EncodeError(
                "the text holds a special token, and this tokenizer cannot encode around it",
                reason="special token in the text",
                fix="take it out, or split_special_tokens=False",
            )
        ids = self._cut_ids(drawn.pieces)
        one = (ids, np.array([0, len(ids)]))
        return self._finish(drawn, ids, by_bytes(one, [drawn.text], [drawn.spans], widths)[0])

    def _cut_ids(self, pieces: list[tuple[str, int | None]]) -> NDArray[np.int32]:
        assert self._backend is not None
        flat, offsets = self._backend.encode([text for text, token in pieces if token is None], special=False)
        rows = iter([flat[a:b] for a, b in pairwise(offsets.tolist())])
        return np.concatenate([next(rows) if t is None else np.array([t], np.int32) for _, t in pieces] or [flat])

    def _closed(self, ids: NDArray[np.int32], spans: Spans, weights: list[float]) -> "Encoded | EncodeError":
        """Make sure of one beginning token and of something to train."""
        v = self.vocabulary
        if v.prefix and (not len(ids) or int(ids[0]) != v.prefix[0]):
            n = len(v.prefix)
            ids = np.concatenate([np.array(v.prefix, np.int32), ids])
            spans = [(a + n, b + n) for a, b in spans]
        first = int(bool(len(ids)) and v.bos_id is not None and int(ids[0]) == v.bos_id)
        if any(w != 1 for w in weights):
            kept = [(max(a, first), b, w) for (a, b), w in zip(spans, weights, strict=True) if b > max(a, first)]
            table = np.array([(a, b) for a, b, _ in kept], np.int32).reshape(-1, 2)
            encoded = Encoded(ids, table, np.array([w for *_, w in kept], np.float32))
        else:
            encoded = Encoded(ids, tidy(spans, len(ids), first))
        if not len(encoded.spans):
            return EncodeError("no token of it would be trained", reason="no trained token")
        return encoded

    def _fit(self, encoded: Encoded, conversation: Conversation) -> "Encoded | EncodeError":
        """Bring a conversation under the limit: oldest exchanges go whole, then the last answer is cut."""
        limit = self.max_length
        if limit is None or len(encoded.ids) <= limit:
            return encoded
        head, exchanges = _exchanges(conversation.messages)
        while len(exchanges) > 1 and len(encoded.ids) > limit:
            exchanges = exchanges[1:]
            self.counts["exchanges dropped"] += 1
            shorter = Conversation(head + [m for e in exchanges for m in e], conversation.tools)
            try:
                result = self._tokens([self._draw(shorter)])[0]
            except EncodeError as error:
                return error
            if isinstance(result, EncodeError):
                return result
            encoded = result
        if len(encoded.ids) <= limit:
            return encoded
        self.counts["answers cut"] += 1
        keep = encoded.spans[:, 0] < limit
        if not keep.any():
            return EncodeError(
                f"{len(encoded.ids)} tokens, and the first {limit} hold nothing to train", reason="no trained token"
            )
        spans = np.minimum(encoded.spans[keep], limit).astype(np.int32)
        weights = None if encoded.weights is None else encoded.weights[keep]
        return Encoded(encoded.ids[:limit], spans, weights, encoded.more)


def _exchanges(messages: list[Message]) -> tuple[list[Message], list[list[Message]]]:
    """Split into leading system messages and exchanges, each from a user's turn to before the next."""
    start = next((i for i, m in enumerate(messages) if m.role not in {"system", "developer"}), len(messages))
    exchanges: list[list[Message]] = []
    for i, message in enumerate(messages[start:]):
        opens = message.role == "user" and (i == 0 or messages[start + i - 1].role != "user")
        if opens or not exchanges:
            exchanges.append([])
        exchanges[-1].append(message)
    return messages[:start], exchanges


def _joined(written: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join neighbours of one role, and a system turn with the user's after it, where their contents are text."""
    out: list[dict[str, Any]] = []
    for message in written:
        text = message.get("content")
        before = out[-1] if out else None
        same = before is not None and message["role"] == before["role"] in {"user", "assistant", "system"}
        calls = before is not None and (message.get("tool_calls") or before.get("tool_calls"))
        if same and not calls and before is not None and isinstance(text, str) and isinstance(before["content"], str):
            out[-1] = {**before, "content": f"{before['content']}\n\n{text}"}
        else:
            out.append(message)
    return out


def _source(tokenizer: Any, given: str | None) -> str:
    """Find the template's text."""
    if given is not None and "{" not in given:
        try:
            with open(given, encoding="utf-8") as file:  # noqa: PTH123 - a path or text, as the user typed it
                return file.read()
        except OSError as error:
            raise ConfigError(f"no chat template at {given!r}", where="chat_template=", fix=str(error)) from error
    source = given or getattr(tokenizer, "chat_template", None)
    if isinstance(source, dict):
        source = source.get("default")
    if not source:
        raise ConfigError(
            "the tokenizer has no chat template", where="ChatEncoder", fix="chat_template= the model's .jinja file"
        )
    return str(source)
