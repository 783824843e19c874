"""A conversation's media in its sample: counted, placed, and kept as references or decoded at once.

Decides the columns of a sample with media. Knows no template and no batch.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.core.errors import ConfigError, nearest
from thalweg.encode.errors import EncodeError
from thalweg.encode.length import Encoded
from thalweg.encode.media.families import PLACES, Arrays, Measured, Media
from thalweg.encode.media.places import expand, expand_mixed, moved, positions
from thalweg.encode.media.references import name_of
from thalweg.encode.media.together import Stretch, interleave

REFERENCES = {"image": "images", "video": "videos", "audio": "audios"}  # columns that hold references
GRIDS = {"image": "image_grid_thw", "video": "video_grid_thw"}


class Placer:
    """Puts media into encoded conversations.

    Args:
        media: counts and features of the model; None refuses conversations with media.
        vocabulary: text -> id of special tokens: which of them stands for which kind.
        decode: "late" keeps references, "now" decodes when a sample is encoded.
        template: text of the chat template: where a vocabulary has tokens of two families, the one it writes counts.

    Raises:
        ConfigError: an unknown word for `decode`.
    """

    def __init__(
        self, media: Media | None, vocabulary: Mapping[str, int], decode: str = "late", template: str = ""
    ) -> None:
        if decode not in {"late", "now"}:
            raise ConfigError(f"unknown decode {decode!r}", where="decode=", fix=nearest(decode, ("late", "now")))
        self.media, self.decode = media, decode
        known = {kind: [n for n in names if n in vocabulary] for kind, names in PLACES.items()}
        found = {
            kind: next((n for n in names if n in template), next(iter(names), None)) for kind, names in known.items()
        }
        self.tokens = {kind: vocabulary[name] for kind, name in found.items() if name is not None}

    def place(self, encoded: Encoded, media: Sequence[tuple[str, Any]]) -> Encoded:
        """Count the media of a conversation and give them their tokens.

        Raises:
            EncodeError: a medium that is not there, not readable, or not of this model; the error names it.
        """
        if self.media is None:
            raise EncodeError(
                f"the conversation has {len(media)} media", reason="media without a processor",
                fix="processor= the model's processor, or a model directory with preprocessor_config.json",
            )  # fmt: skip
        measured: list[tuple[str, Measured]] = []
        for kind, reference in media:
            if kind not in self.tokens:
                raise EncodeError(f"the tokenizer has no token for {kind}", reason=f"model without {kind}")
            measured.append((kind, self.media.measure(kind, reference)))
        merge, seen = getattr(self.media, "merge", 1), self.media
        mixes: list[tuple[int, Stretch]] = []
        if seen.mixed is not None and any(kind == "video" for kind, _ in measured):
            time = seen.mixed
            ids, kinds, borders, mixes = expand_mixed(
                encoded.ids, measured, self.tokens, lambda clip, sound: interleave(clip, sound, merge, time)
            )
        else:
            ids, kinds, borders = expand(encoded.ids, measured, self.tokens)
        place = positions(
            kinds, measured, merge, clip_step=seen.clip_step, behind=seen.behind, mixes=mixes,
            shared=seen.mixed is not None and seen.mixed.shared,
        )  # fmt: skip
        more: dict[str, Any] = {**encoded.more, "position_ids": place, "mm_token_type_ids": kinds}
        more["media_tokens"] = int(sum(m.tokens for _, m in measured))
        more |= self._columns(media, measured)
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
            if kind in GRIDS:
                out[GRIDS[kind]] = np.array([m.grid for k, m in measured if k == kind], np.int64)
        return out


def load(sample: Mapping[str, Any], media: Media) -> dict[str, Any]:
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
        if kind in GRIDS and not np.array_equal(made[GRIDS[kind]], sample[GRIDS[kind]]):
            raise EncodeError(
                f"{', '.join(map(name_of, references))} changed since the sample was encoded",
                reason="medium changed", fix="encode the sample again",
            )  # fmt: skip
        out |= made
    return out


def text_positions(n: int) -> NDArray[np.int64]:
    """Give the positions of a text without media. int64 (3, n)."""
    return np.tile(np.arange(n), (3, 1))
