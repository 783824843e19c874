"""Conversations become tokens and labels: the model's own template, one rendering, the loss on what is trained.

Wires layouts, drawing, backend and spans together. Decides where tokens stand that no template wrote, and that no
conversation without a trained token passes. Knows no file and no batch.
"""

import logging
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.core.errors import ConfigError
from thalweg.core.sample import Sample
from thalweg.encode.backend import Backend, automatic, choose, reference
from thalweg.encode.conversation import Conversation
from thalweg.encode.drawing import Drawer, Drawn
from thalweg.encode.errors import EncodeError, record_id
from thalweg.encode.layouts import Layout, are_columns, read, recognise
from thalweg.encode.length import Encoded, cut_answer, paired, shorter
from thalweg.encode.media.batches import MediaCollator
from thalweg.encode.media.families import Limits
from thalweg.encode.media.models import media_of
from thalweg.encode.media.placing import Placer
from thalweg.encode.media.references import Folder
from thalweg.encode.messages import Tags
from thalweg.encode.spans import Found, Spans, by_bytes, by_offsets, by_prefix, labels_of, tidy
from thalweg.encode.template import unmark
from thalweg.encode.tokens import Vocabulary, real, shared_tokenizer, tokenizer_digest

_LOG = logging.getLogger("thalweg.encode")


class ChatEncoder:
    """Encode conversations for supervised training. Picklable; call it with a record.

    Args:
        tokenizer_or_path: a tokenizer of transformers with a chat template, its directory, or its hub name.
        columns: None finds a known layout; or names, such as {"messages": "conversations"} (see `encode.layouts`).
        train_on: "assistant": all answers, with the token that ends each; "last": the last answer; "all": everything.
        max_length: tokens at most. Longer conversations lose their oldest exchanges, whole; system and last exchange
            stay; a last answer that is still too long is cut and keeps no end token.
        media_dir: folder or URL where relative paths of pictures, clips and sounds start.
        image_max_pixels: largest area of a picture, aspect kept; None: the processor's own.
        enable_thinking: None leaves thoughts as they are; True asks the template for them; False takes thoughts out
            and leaves the empty thought of the prompt untrained.
        decode: "late" counts media by their headers and keeps references (`media.batches.MediaCollator` decodes);
            "now" decodes at once.
        processor: the model's processor, or a folder with preprocessor_config.json; None: the tokenizer's folder.
        limits: further areas, and how clips are sampled.
        chat_template: jinja text, path of a .jinja file, or a family ("qwen3", "qwen2_omni", "qwen3_omni", ...); None:
            the tokenizer's own.
        template_variables: what the template may read further, such as {"date_string": "26 Jul 2024"}.
        split_special_tokens: True (default): what looks like a special token in a message stays text.
        tool_format: None: tools, calls and results as the template writes them (one that drops them is refused);
            "qwen": as text in ordinary turns.
        backend: "auto" (the fastest that proves equal on the first texts), or one by name: "tokenizers", "fastokens",
            "tiktoken", "python".

    Attributes:
        counts: what the length limit took: "exchanges dropped", "answers cut"; of this process.

    Raises:
        ConfigError: no chat template, or one that cannot write user and assistant turns; an unknown word.
    """

    whole_sample = True  # the result is the whole sample: other columns do not stay beside it

    def __init__(
        self,
        tokenizer_or_path: Any,
        columns: Mapping[str, str | None] | None = None,
        *,
        train_on: str = "assistant",
        max_length: int | None = None,
        media_dir: str | None = None,
        image_max_pixels: int | None = None,
        enable_thinking: bool | None = None,
        decode: str = "late",
        processor: Any = None,
        limits: Limits | None = None,
        chat_template: str | None = None,
        template_variables: Mapping[str, Any] | None = None,
        split_special_tokens: bool = True,
        tool_format: str | None = None,
        backend: str = "auto",
    ) -> None:
        self._arguments = {k: v for k, v in locals().items() if k not in {"self", "__class__"}}
        self.words = shared_tokenizer(tokenizer_or_path)
        if max_length is not None and max_length < 1:
            raise ConfigError(f"max_length={max_length} leaves no room for a token", fix="give a larger one, or None")
        self.columns, self.max_length = columns, max_length
        self.vocabulary = Vocabulary.of(self.words)
        self.drawer = Drawer(
            self.words,
            train_on=train_on,
            enable_thinking=enable_thinking,
            chat_template=chat_template,
            variables=template_variables,
            split_special_tokens=split_special_tokens,
            tool_format=tool_format,
        )
        areas = limits or Limits()
        if image_max_pixels is not None:
            areas = replace(areas, image_max_pixels=image_max_pixels)
        model = processor if processor is not None else tokenizer_or_path
        self.media = media_of(model, folder=Folder(media_dir), limits=areas)
        self.placer = Placer(self.media, self.words, decode, self.drawer.template.source)
        self.counts: Counter[str] = Counter()
        self._layouts: dict[tuple[str, ...], Layout] = {}
        self._said: list[Layout] = []
        self._role = Tags.of({k: v for k, v in (columns or {}).items() if k == "role_tag"}).role
        self._travelled = False
        self._backend: Backend = automatic(self.words) if backend == "auto" else choose(self.words, backend, ())
        self._cuttable: bool | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Travel as the arguments: each process loads its tokenizer and proves its engine."""
        return {"arguments": self._arguments, "today": self.drawer.template.today}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Build it again, with the date that templates read as it was."""
        self.__init__(**state["arguments"])  # type: ignore[misc]
        self.drawer.template.set_today(state["today"])
        self._travelled = True

    @property
    def tokenizer(self) -> Any:
        """The tokenizer of transformers itself; `words` is the same where ids are enough, and loads in no time."""
        return real(self.words)

    def for_worker(self) -> "ChatEncoder":
        """Give the same to every thread: its engines are configured once, and a copy of a vocabulary takes a second."""
        return self

    def collator(
        self,
        *,
        packed: bool,
        capacity: int | None = None,
        pad_id: int | None = None,
        multiple_of: int = 1,
        always_media: bool = False,
        on_error: str = "raise",
    ) -> MediaCollator | None:
        """Give what makes batches of these samples where they may have media; feeds ask when nothing else is said.

        A feed says `on_error="skip"` where the map of the encoder skips or sets aside what it cannot encode.
        """
        if self.media is None or self.placer.decode == "now":
            return None
        pad = (self.vocabulary.pad_id or 0) if pad_id is None else pad_id
        return MediaCollator(
            self.media,
            packed=packed,
            capacity=capacity,
            pad_id=pad,
            multiple_of=multiple_of,
            always_media=always_media,
            dummies=self.placer.dummies,
            on_error=on_error,
        )

    @property
    def digest(self) -> str:
        """Name all that decides the samples: settings, template, its date, and tokenizer."""
        aside = {"tokenizer_or_path", "backend", "chat_template", "processor", "limits"}
        settings = {k: v for k, v in self._arguments.items() if k not in aside}
        settings["media"] = None if self.media is None else self.media.fingerprint
        template = self.drawer.template
        today = template.today.date() if template.reads_today else None
        return f"{tokenizer_digest(self.words)}:{settings!r}:{template.source}:{today}"

    @property
    def fingerprint(self) -> str:
        """Identity of the function in a feed: what decides the samples, and nothing that use changes."""
        return self.digest

    def __call__(self, record: Mapping[str, Any]) -> Sample:
        """Encode one record, or columns of records where each column is a list of values.

        Returns:
            `input_ids` int32 (n,) and `labels` int64 (n,), unshifted; `id` where there was one; `loss_weights`
            float32 (k,) where a message has a weight other than 0 and 1; of a preference pair `rejected_input_ids`
            and `rejected_labels` beside the preferred; with media their references or features, `position_ids`
            int64 (3, n) and `mm_token_type_ids` int64 (n,). Of columns: lists.

        Raises:
            EncodeError: a record that no rule accepts; it names the record.
        """
        if are_columns(record, self._role):
            return self._columns(record)
        encoded = self.encode_batch([record])[0]
        if isinstance(encoded, EncodeError):
            raise encoded
        return self._sample(encoded, record)

    def _columns(self, columns: Mapping[str, Any]) -> Sample:
        names = list(columns)
        records = [dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        samples: list[Sample] = []
        for record, encoded in zip(records, self.encode_batch(records), strict=True):
            if isinstance(encoded, EncodeError):
                raise encoded
            samples.append(self._sample(encoded, record))
        keys = dict.fromkeys(k for s in samples for k in s)
        return {k: [s.get(k) for s in samples] for k in keys}

    def _sample(self, encoded: Encoded, record: Mapping[str, Any]) -> Sample:
        out: Sample = {"input_ids": encoded.ids, "labels": labels_of(encoded.ids, encoded.spans), **encoded.more}
        if "rejected_loss_spans" in out:
            out["rejected_labels"] = labels_of(out["rejected_input_ids"], out.pop("rejected_loss_spans"))
        if encoded.weights is not None:
            out["loss_weights"] = encoded.weights
        if "id" in record:
            out["id"] = record["id"]
        return out

    def encode_batch(self, records: Sequence[Mapping[str, Any]]) -> "list[Encoded | EncodeError]":
        """Encode records together: each gives its tokens or the reason why it has none."""
        drawn: list[Drawn | EncodeError] = []
        kept: list[Conversation | None] = []  # where it is needed again: many thousands of small objects otherwise
        for record in records:
            try:
                conversation = read(record, self._layout(record))
                drawn.append(self._draw(conversation))
                again = self.max_length is not None or conversation.rejected is not None
                kept.append(conversation if again else None)
            except EncodeError as error:
                drawn.append(error.named(record_id(record)))
                kept.append(None)
            except (TypeError, ValueError, RecursionError) as error:  # arrays for texts, tools that are no JSON, ...
                odd = EncodeError(f"a value that no rule knows: {error}", reason="unknown kind of value")
                drawn.append(odd.named(record_id(record)))
                kept.append(None)
        encoded = iter(self._tokens([d for d in drawn if isinstance(d, Drawn)]))
        out: list[Encoded | EncodeError] = []
        for record, source, d in zip(records, kept, drawn, strict=True):
            result = d if isinstance(d, EncodeError) else next(encoded)
            if isinstance(result, Encoded) and source is not None:
                result = self._fit(result, source)
            out.append(result.named(record_id(record)) if isinstance(result, EncodeError) else result)
        return out

    def _draw(self, conversation: Conversation) -> Drawn:
        drawn = self.drawer.draw(conversation)
        return self.placer.stamped(drawn) if drawn.media else drawn

    def _layout(self, record: Mapping[str, Any]) -> Layout:
        key = tuple([k for k, v in record.items() if v is not None])
        if key not in self._layouts:
            layout = self._layouts[key] = recognise(record, self.columns)
            if self.columns is None and layout not in self._said:
                self._said.append(layout)
                self._say(f"records read as {layout}")
        return self._layouts[key]

    def _say(self, what: str) -> None:
        """Tell the user at a terminal, once and not from each worker; elsewhere it is in the log."""
        _LOG.info(what)
        if not self._travelled and sys.stderr is not None and sys.stderr.isatty():
            sys.stderr.write(f"thalweg: {what}\n")

    def _tokens(self, drawn: list[Drawn]) -> "list[Encoded | EncodeError]":
        """Encode renderings together and turn their spans into token spans."""
        if not drawn:
            return []
        plain = [d for d in drawn if d.pieces is None]
        try:
            ids, offsets = self._backend.encode([d.text for d in plain], special=True)
        except (UnicodeEncodeError, TypeError):
            if len(drawn) > 1:
                return [self._tokens([d])[0] for d in drawn]
            return [EncodeError("the text holds a lone surrogate", reason="not valid Unicode")]
        found = (
            None
            if self.vocabulary.widths is None
            else by_bytes((ids, offsets), [d.text for d in plain], [d.spans for d in plain], self.vocabulary.widths)
        )
        done = iter(self._regular(ids, offsets, found, plain))
        return [self._pieced(d, d.pieces) if d.pieces is not None else next(done) for d in drawn]

    def _regular(
        self, ids: NDArray[np.int32], offsets: NDArray[np.int64], found: Found | None, drawn: list[Drawn]
    ) -> "Iterator[Encoded | EncodeError]":
        """Give the tokens of each rendering: as slices where nothing is to be done, which is nearly always."""
        bounds = offsets.tolist()
        if found is None:
            for d, (a, b) in zip(drawn, pairwise(bounds), strict=True):
                yield self._finish(d, ids[a:b], None)
            return
        v, lengths = self.vocabulary, np.diff(offsets)
        heads = np.full(len(drawn), -1, np.int64)
        heads[lengths > 0] = ids[offsets[:-1][lengths > 0]]
        begun = np.zeros(len(drawn), np.int64) if v.bos_id is None else (heads == v.bos_id).astype(np.int64)
        told = found.regular(begun, lengths)
        if v.prefix:
            told &= heads == v.prefix[0]
        table = found.pairs.astype(np.int32)
        for i, (d, a, b, usual) in enumerate(zip(drawn, bounds, bounds[1:], told.tolist(), strict=False)):
            if usual and not d.media and d.weights.count(1.0) == len(d.weights):
                yield Encoded(ids[a:b], table[found.bounds[i] : found.bounds[i + 1]])
            else:
                yield self._finish(d, ids[a:b], found.of(i))

    def _finish(self, drawn: Drawn, ids: NDArray[np.int32], spans: Spans | None) -> "Encoded | EncodeError":
        try:
            if spans is None and getattr(self.words, "backend_tokenizer", None) is not None:
                again, places = reference(self.words).offsets(drawn.text)
                spans = by_offsets(places, drawn.spans) if np.array_equal(again, ids) else None
            if spans is None:
                spans = by_prefix(self._backend, drawn.text, ids, drawn.spans)
        except EncodeError as error:
            return error
        closed = self._closed(ids, spans, drawn.weights)
        if not drawn.media or isinstance(closed, EncodeError):
            return closed
        try:
            return self.placer.place(closed, drawn.media, drawn.measured)
        except EncodeError as error:
            return error

    def _pieced(self, drawn: Drawn, pieces: list[tuple[str, int | None]]) -> "Encoded | EncodeError":
        """Encode a rendering that was cut at its special tokens, its texts with special tokens unread."""
        if self._cuttable is None:
            words = [{"role": "user", "content": " a b\n"}, {"role": "assistant", "content": "c"}]
            probe, _ = unmark(self.drawer.template.render(words))
            alone = self._cut_ids(self.drawer.guard.pieces(probe))
            self._cuttable = np.array_equal(alone, self._backend.encode([probe], special=True)[0])
        widths = self.vocabulary.widths
        if widths is None or not self._cuttable:
            return EncodeError(
                "the text holds a special token, and this tokenizer cannot encode around it",
                reason="special token in the text",
                fix="take it out, or split_special_tokens=False",
            )
        ids = self._cut_ids(pieces)
        one = (ids, np.array([0, len(ids)]))
        return self._finish(drawn, ids, by_bytes(one, [drawn.text], [drawn.spans], widths).of(0))

    def _cut_ids(self, pieces: list[tuple[str, int | None]]) -> NDArray[np.int32]:
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
        if weights.count(1.0) == len(weights):
            encoded = Encoded(ids, tidy(spans, len(ids), first))
        else:
            kept = [(max(a, first), b, w) for (a, b), w in zip(spans, weights, strict=True) if b > max(a, first)]
            table = np.array([(a, b) for a, b, _ in kept], np.int32).reshape(-1, 2)
            encoded = Encoded(ids, table, np.array([w for *_, w in kept], np.float32))
        if not len(encoded.spans):
            return EncodeError("no token of it would be trained", reason="no trained token")
        return encoded

    def _fit(self, encoded: Encoded, conversation: Conversation) -> "Encoded | EncodeError":
        """Bring a conversation under the limit, and put the answer not preferred beside the preferred one.

        Oldest exchanges go whole, of both sides of a pair, so that their prompt stays one; then last answers are cut.
        """
        sides, limit = [conversation], self.max_length
        try:
            made = [encoded]
            if conversation.rejected is not None:
                sides.append(Conversation(conversation.rejected, conversation.tools))
                made += self._made(sides[1:])
            while limit is not None and any(len(e.ids) > limit for e in made):
                rests = [rest for side in sides if (rest := shorter(side)) is not None]
                if len(rests) < len(sides):
                    self.counts["answers cut"] += sum(int(e.spans[-1, 1]) > limit for e in made)
                    made = [cut_answer(e, limit) if len(e.ids) > limit else e for e in made]
                    break
                self.counts["exchanges dropped"] += 1
                sides, made = rests, self._made(rests)
        except EncodeError as error:
            return error
        return made[0] if len(made) == 1 else paired(*made)

    def _made(self, conversations: list[Conversation]) -> list[Encoded]:
        """Encode conversations; raises what is wrong with one."""
        out: list[Encoded] = []
        for result in self._tokens([self._draw(c) for c in conversations]):
            if isinstance(result, EncodeError):
                raise result
            out.append(result)
        return out
