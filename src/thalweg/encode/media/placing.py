"""A conversation's media in its sample: counted, placed, and kept as references or decoded at once.

Decides the columns of a sample with media. Knows no template and no batch.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.core.errors import ConfigError, nearest
from thalweg.encode.drawing import Drawn
from thalweg.encode.errors import EncodeError
from thalweg.encode.length import Encoded
from thalweg.encode.media.families import PLACES, Arrays, Measured
from thalweg.encode.media.models import Seeing
from thalweg.encode.media.places import expand, expand_mixed, moved, positions
from thalweg.encode.media.references import name_of
from thalweg.encode.media.stamps import Word, split, stamp
from thalweg.encode.media.together import Stretch, interleave
from thalweg.encode.tokens import ids_of

REFERENCES = {"image": "images", "video": "videos", "audio": "audios"}  # columns that hold references
GRIDS = {"image": "image_grid_thw", "video": "video_grid_thw"}
SIZES = "image_sizes"  # of pictures that are cut into tiles
_AROUND = {  # what stands before and after a place
    "<|image_pad|>": ("<|vision_start|>", "<|vision_end|>"),
    "<|IMAGE|>": ("<|vision_bos|>", "<|vision_eos|>"),
    "<|audio_pad|>": ("<|audio_start|>", "<|audio_end|>"),
    "<|AUDIO|>": ("<|audio_bos|>", "<|audio_eos|>"),
}


class Placer:
    """Puts media into encoded conversations.

    Args:
        media: counts and features of the model; None refuses conversations with media.
        tokenizer: says which of its tokens stands for which kind.
        decode: "late" keeps references, "now" decodes when a sample is encoded.
        template: text of the chat template: where a vocabulary has tokens of two families, the one it writes counts.

    Raises:
        ConfigError: an unknown word for `decode`.
    """

    def __init__(self, media: Seeing | None, tokenizer: Any, decode: str = "late", template: str = "") -> None:
        if decode not in {"late", "now"}:
            raise ConfigError(f"unknown decode {decode!r}", where="decode=", fix=nearest(decode, ("late", "now")))
        self.media, self.decode = media, decode
        around = [word for borders in _AROUND.values() for word in borders]
        vocabulary = ids_of(tokenizer, [*around, *(n for names in PLACES.values() for n in names)])
        known = {kind: [n for n in names if n in vocabulary] for kind, names in PLACES.items()}
        found = {
            kind: next((n for n in names if n in template), next(iter(names), None)) for kind, names in known.items()
        }
        self.tokens = {kind: vocabulary[name] for kind, name in found.items() if name is not None}
        words = ("<|vision_start|>", found["video"] or "", "<|vision_end|>")
        self._words: tuple[Word, Word, Word] | None = None
        if all(word in vocabulary for word in words):
            opening, place, closing = ((word, vocabulary[word]) for word in words)
            self._words = (opening, place, closing)
        self.dummies: dict[str, tuple[int, int, int]] = {}  # tokens of a medium of each kind that the model takes
        for kind, part in (("image", "image_processor"), ("audio", "feature_extractor")):
            here = found[kind]
            if here is not None and getattr(media, part, None) is not None:
                end = getattr(tokenizer, "eos_token_id", None)  # any token will do where a template writes none around
                before, after = (vocabulary.get(word, end) for word in _AROUND.get(here, ("", "")))
                if before is not None and after is not None:
                    self.dummies[kind] = (before, vocabulary[here], after)

    def stamped(self, drawn: Drawn) -> Drawn:
        """Write the time of each step of a clip into a rendering, for a model that reads it there.

        Raises:
            EncodeError: as `place`.
        """
        stamps = None if self.media is None else self.media.stamps
        if stamps is None or self._words is None or all(kind != "video" for kind, _ in drawn.media):
            return drawn
        measured = self._measured(drawn.media)
        clips = [m.times for (kind, _), m in zip(drawn.media, measured, strict=True) if kind == "video"]
        pieces = split(drawn.text, self._words) if drawn.pieces is None else drawn.pieces
        pieces, moves = stamp(pieces, clips, self._words, inside=stamps.inside)
        text = "".join(piece for piece, _ in pieces)
        kept = None if drawn.pieces is None else pieces
        return Drawn(text, moves(drawn.spans), drawn.weights, kept, drawn.media, measured)

    def _measured(self, media: Sequence[tuple[str, Any]]) -> list[Measured]:
        if self.media is None:
            raise EncodeError(
                f"the conversation has {len(media)} media", reason="media without a processor",
                fix="processor= the model's processor, or a model directory with preprocessor_config.json",
            )  # fmt: skip
        for kind, _ in media:
            if kind not in self.tokens:
                raise EncodeError(f"the tokenizer has no token for {kind}", reason=f"model without {kind}")
        return [self.media.measure(kind, reference) for kind, reference in media]

    def place(
        self, encoded: Encoded, media: Sequence[tuple[str, Any]], known: Sequence[Measured] | None = None
    ) -> Encoded:
        """Count the media of a conversation and give them their tokens.

        Args:
            encoded: with one token a medium, or one a step of a timed clip.
            media: kind and reference of each.
            known: their measures, where they were taken already.

        Raises:
            EncodeError: a medium that is not there, not readable, or not of this model; the error names it.
        """
        counted = self._measured(media) if known is None else known
        whole = [(kind, m) for (kind, _), m in zip(media, counted, strict=True)]
        measured = [(kind, step) for kind, m in whole for step in _steps(m)]
        assert self.media is not None
        merge, seen = getattr(self.media, "merge", 1), self.media
        mixes: list[tuple[int, Stretch]] = []
        if seen.mixed is not None and any(kind == "video" for kind, _ in measured):
            time = seen.mixed
            ids, kinds, borders, mixes = expand_mixed(
                encoded.ids, measured, self.tokens, lambda clip, sound: interleave(clip, sound, merge, time)
            )
        else:
            ids, kinds, borders = expand(encoded.ids, measured, self.tokens)
        more: dict[str, Any] = {**encoded.more, "mm_token_type_ids": kinds}
        if not seen.flat:
            more["position_ids"] = positions(
                kinds, measured, merge, clip_step=seen.clip_step, behind=seen.behind, mixes=mixes,
                shared=seen.mixed is not None and seen.mixed.shared,
            )  # fmt: skip
        more["media_tokens"] = int(sum(m.tokens for _, m in whole))
        more |= self._columns(media, whole)
        return Encoded(ids, moved(encoded.spans, borders), encoded.weights, more)

    def _columns(self, media: Sequence[tuple[str, Any]], measured: Sequence[tuple[str, Measured]]) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for kind, column in REFERENCES.items():
            references = [r for k, r in media if k == kind]
            if not references:
                continue
            if self.decode == "now":
                assert self.media is not None
                out |= self.media.features(kind, references)
                continue
            out[column] = references
            found = [m for k, m in measured if k == kind]
            if found[0].grid is not None:
                out[GRIDS[kind]] = np.array([m.grid for m in found], np.int64)
            elif found[0].size is not None:
                out[SIZES] = np.array([m.size for m in found], np.int64)
        return out


def _steps(measured: Measured) -> list[Measured]:
    """Give what each token of a medium in the rendering stands for: all of it, or a step of a timed clip."""
    if not measured.times or measured.grid is None:
        return [measured]
    n, rows, columns = measured.grid
    return [Measured(measured.tokens // n, (1, rows, columns))] * n


def load(sample: Mapping[str, Any], media: Seeing) -> dict[str, Any]:
    """Decode the media of a sample that keeps references, and check them against what was counted.

    Returns:
        The sample with features in place of references.

    Raises:
        EncodeError: a medium that has changed since, or cannot be decoded.
    """
    out = {k: v for k, v in sample.items() if k not in REFERENCES.values()}
    for kind, column in REFERENCES.items():
        references = sample.get(column)
        if references is None or not len(references):
            continue
        made: Arrays = media.features(kind, list(references))
        sized = GRIDS.get(kind, "") if GRIDS.get(kind, "") in made else SIZES
        if sized in made and not np.array_equal(made[sized], sample[sized]):
            raise EncodeError(
                f"{', '.join(map(name_of, references))} changed since the sample was encoded",
                reason="medium changed", fix="encode the sample again",
            )  # fmt: skip
        out |= made
    return out


def text_positions(n: int) -> NDArray[np.int64]:
    """Give the positions of a text without media. int64 (3, n)."""
    return np.tile(np.arange(n), (3, 1))
