"""Tokens made visible: which text each one stands for, and whether the model is trained on it.

Decides how tokens and labels become pieces of text with a kind. Labels are unshifted: a piece is "loss" when the model
is asked to predict it. Knows neither where samples come from nor how pieces are painted.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from thalweg.core.sample import IGNORE_INDEX

Kind: TypeAlias = Literal["loss", "context", "padding"]
Decode: TypeAlias = Callable[[list[int]], str]

BROKEN = "\ufffd"  # what a decoder gives for a part of a character
LONGEST = 8  # tokens that one character may be cut into


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens that show one piece of text: one token, or the few that one character is cut into."""

    text: str
    kind: Kind
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class View:
    """A sample or a row, ready to be shown: its documents, each a list of pieces; or plain `text` before encoding."""

    title: str
    documents: tuple[tuple[Piece, ...], ...]
    text: str = ""

    def count(self, kind: Kind) -> int:
        """Count the tokens of a kind."""
        return sum(len(piece.ids) for document in self.documents for piece in document if piece.kind == kind)

    @property
    def num_tokens(self) -> int:
        """Count the tokens, padding excluded."""
        return self.count("loss") + self.count("context")

    @property
    def size(self) -> str:
        """Say how much it is: tokens, or characters before encoding."""
        if not self.documents:
            return f"{len(self.text):,} characters"
        return f"{self.num_tokens:,} tokens, {self.count('loss'):,} in the loss"

    def marked(self) -> str:
        """Give plain text: trained tokens in brackets, documents under each other, padding counted."""
        blocks: list[str] = [self.text] if self.text else []
        for document in self.documents:
            text = ""
            for kind, pieces in groupby(document, key=lambda piece: piece.kind):
                run = list(pieces)
                if kind == "padding":
                    text += f"({sum(len(piece.ids) for piece in run):,} padding tokens)"
                else:
                    joined = "".join(piece.text for piece in run)
                    text += f"⟦{joined}⟧" if kind == "loss" else joined
            blocks.append(text)
        return "\n────\n".join(blocks)

    def to_dict(self) -> dict[str, Any]:
        """Write as JSON-like data: a list of documents of [text, kind, ids]."""
        documents = [[[piece.text, piece.kind, list(piece.ids)] for piece in document] for document in self.documents]
        counts = {"num_tokens": self.num_tokens, "num_label_tokens": self.count("loss")}
        text = {"text": self.text} if self.text else {}
        return {"title": self.title, **counts, "documents": documents, **text}


def show_ids(ids: list[int]) -> str:
    """Stand in for a tokenizer where there is none: the numbers themselves."""
    return "".join(f"⟨{i}⟩" for i in ids)


def pieces(ids: Sequence[int], kinds: Sequence[Kind], decode: Decode) -> tuple[Piece, ...]:
    """Turn tokens into pieces of text; tokens of one character stay together, under the kind of the first.

    Args:
        ids: n token ids.
        kinds: n kinds.
        decode: gives the text of ids, special tokens included.
    """
    found: list[Piece] = []
    at = 0
    while at < len(ids):
        if kinds[at] == "padding":
            found.append(Piece("", "padding", (int(ids[at]),)))
            at += 1
            continue
        end, text = at + 1, decode([int(ids[at])])
        while BROKEN in text and end < min(len(ids), at + LONGEST):
            longer = decode([int(i) for i in ids[at : end + 1]])
            end += 1
            if BROKEN not in longer:
                text = longer
                break
        else:
            end = at + 1
        found.append(Piece(text, kinds[at], tuple(int(i) for i in ids[at:end])))
        at = end
    return tuple(found)


def view_sample(title: str, sample: dict[str, Any], decode: Decode) -> View:
    """Show a sample: `input_ids` with `labels` (unshifted) or `loss_spans`; without either all tokens are in the loss.

    A first token is never predicted, so it is shown as context.
    """
    ids = np.asarray(sample["input_ids"])
    trained = np.ones(len(ids), bool)
    if sample.get("labels") is not None:
        labelled = np.asarray(sample["labels"])[: len(ids)] != IGNORE_INDEX
        trained = np.append(labelled, np.zeros(len(ids) - len(labelled), bool))  # tokens without a label are context
    elif sample.get("loss_spans") is not None:
        trained[:] = False
        for start, end in np.asarray(sample["loss_spans"]).reshape(-1, 2):
            trained[start:end] = True
    trained[:1] = False
    return View(title, (pieces(ids.tolist(), _kinds(trained), decode),))


def view_row(
    title: str,
    ids: NDArray[Any],
    *,
    labels: NDArray[Any],
    positions: NDArray[Any] | None,
    real: NDArray[np.bool_] | None,
    decode: Decode,
) -> View:
    """Show a row of a batch.

    Args:
        title: stands over the row.
        ids: (L,) token ids.
        labels: (L,) unshifted labels.
        positions: (L,) position ids that restart with each document; None for a row of one document.
        real: (L,) False on padding; None where nothing is known about padding.
        decode: gives the text of ids.
    """
    kinds = _kinds(labels != IGNORE_INDEX, real)
    starts = [0] if positions is None else np.flatnonzero(positions == 0).tolist() or [0]
    edges = [*sorted({0, *starts}), len(ids)]
    cut = [slice(a, b) for a, b in pairwise(edges) if b > a]
    return View(title, tuple(pieces(ids[part].tolist(), kinds[part], decode) for part in cut))


def _kinds(trained: NDArray[np.bool_], real: NDArray[np.bool_] | None = None) -> list[Kind]:
    kinds: list[Kind] = ["loss" if value else "context" for value in trained.tolist()]
    for at in () if real is None else np.flatnonzero(~real).tolist():
        kinds[at] = "padding"
    return kinds
