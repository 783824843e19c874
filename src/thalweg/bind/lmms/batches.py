"""What the engine's trainer holds beside a dataset: its collator, its batches, and the processor that it saves.

Decides that a batch is of tensors, and that a packed one, which carries no mask, still tells the trainer the tokens of
its documents. How rows are laid out is `bind.mindspeed.collate`.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from thalweg.bind.mindspeed.collate import MMCollator
from thalweg.bind.mindspeed.keys import Collate
from thalweg.bind.torch.tensors import to_tensors
from thalweg.core.batch import Batch, BatchInfo


class EngineBatch(Batch):
    """A batch for a trainer that counts tokens by `batch.get("attention_mask")`.

    A packed batch has no such key: a model given an all-ones mask would let documents of a row see each other. Asked by
    `get`, it answers with a mask of one line a document, so that the trainer's token and FLOP figures are true;
    `model(**batch)` does not see it.

    Attributes:
        documents: tokens of each document, padding excluded.
    """

    def __init__(
        self, values: Any = (), /, *, documents: Sequence[int] = (), info: BatchInfo | None = None, **more: Any
    ) -> None:
        super().__init__(values, info=info, **more)
        self.documents = tuple(documents)

    def get(self, key: str, default: Any = None) -> Any:
        """Give a value; of a packed batch's "attention_mask" int64 (documents, longest), 1 on tokens."""
        if key == "attention_mask" and key not in self and self.documents:
            sizes = torch.tensor(self.documents)
            return (torch.arange(int(sizes.max())) < sizes[:, None]).long()
        return super().get(key, default)

    def _each(self, method: str, *args: Any, **kwargs: Any) -> "EngineBatch":
        moved = super()._each(method, *args, **kwargs)
        return EngineBatch(moved, info=moved.info, documents=self.documents)


class EngineCollator:
    """Makes batches of tensors. Picklable.

    Args:
        inner: lays the rows out.
    """

    def __init__(self, inner: MMCollator) -> None:
        self.inner = inner

    def __call__(self, items: Sequence[Any]) -> EngineBatch:
        """Make the batch of some items: samples, or the lists of samples of packed rows."""
        rows = items if self.inner.packed else [[item] for item in items]
        sizes = [len(sample["input_ids"]) for row in rows for sample in row]
        info = BatchInfo(num_tokens=sum(sizes))
        return EngineBatch(to_tensors(Batch(self.inner(items))), documents=sizes, info=info)


def collator(encoder: Any, *, packed: bool) -> EngineCollator:
    """Give what makes batches of an encoder's samples: padding takes no part in the loss."""
    told = Collate(ignore_pad_token_for_loss=True, pad_to_multiple_of=1)
    if getattr(encoder, "media", None) is None:
        told = Collate("llm", None, ignore_pad_token_for_loss=True, pad_to_multiple_of=1)
    return EngineCollator(MMCollator(told, encoder, packed=packed))


class Processing:
    """The `processor` of a dataset: the trainer saves it with a checkpoint and decodes a batch to print it.

    Args:
        encoder: of the samples.
    """

    def __init__(self, encoder: Any) -> None:
        self.tokenizer: Any = getattr(encoder, "tokenizer", None)
        self.processor = self.tokenizer
        media: Any = getattr(encoder, "media", None)
        self.parts = [p for n in ("feature_extractor", "image_processor") if (p := getattr(media, n, None)) is not None]

    def save_pretrained(self, folder: str) -> None:
        """Write the tokenizer, and what sees and hears in one preprocessor_config.json."""
        if self.tokenizer is not None:
            self.tokenizer.save_pretrained(folder)
        if self.parts:
            told = {k: v for part in self.parts for k, v in part.to_dict().items()}
            text = json.dumps(told, default=str, indent=2)
            (Path(folder) / "preprocessor_config.json").write_text(text, encoding="utf-8")
