"""How models see media: how many tokens a picture, clip or sound is, and the arrays that their towers take.

Decides counts from headers (`measure`) and features from decoded media (`features`), so that the two agree for the
Qwen-VL and Qwen-Omni families and for models with a fixed number of tokens a picture. The numbers are those of the
model's own image processor and feature extractor. Knows no conversation and no batch.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from thalweg.core.errors import ConfigError
from thalweg.core.extras import need
from thalweg.core.state import digest
from thalweg.encode.errors import EncodeError
from thalweg.encode.media.areas import fit_area, smart_resize
from thalweg.encode.media.folders import told, told_of_clips
from thalweg.encode.media.pictures import picture, picture_size
from thalweg.encode.media.references import Folder
from thalweg.encode.media.sounds import samples, sound_length
from thalweg.encode.media.stamps import Stamps, times
from thalweg.encode.media.videos import Av, Clip, Decoder, Sampling, choose_frames, probe, read_frames, shown

Arrays: TypeAlias = dict[str, NDArray[Any]]
KINDS = ("image", "video", "audio")
# names of the one token that stands for a medium in a rendering, by kind
PLACES = {
    "image": ("<|image_pad|>", "<|IMAGE|>", "<image>"),
    "video": ("<|video_pad|>", "<|VIDEO|>", "<video>"),
    "audio": ("<|audio_pad|>", "<|AUDIO|>", "<audio>"),
}
TYPES = {"image": 1, "video": 2, "audio": 3}  # as transformers' mm_token_type_ids


@dataclass(frozen=True, slots=True)
class Measured:
    """A medium before it is decoded.

    Args:
        tokens: how many tokens stand for it.
        grid: (t, h, w) in patches, for pictures and clips.
        seconds: of the model's time between two steps of t, for clips.
        times: in seconds, of each step of a clip whose time is written as text.
        size: height and width in pixels, for pictures that are cut into tiles.
    """

    tokens: int
    grid: tuple[int, int, int] | None = None
    seconds: float = 1.0
    times: tuple[float, ...] = ()
    size: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """What the user limits before the model's own processor: areas in pixels, aspect kept, and how clips are sampled.

    Args:
        image_max_pixels, image_min_pixels: area of a picture; None or 0: the processor's alone.
        video_max_pixels, video_min_pixels: area of each frame.
        sampling: frames of a clip.
    """

    image_max_pixels: int | None = None
    image_min_pixels: int | None = None
    video_max_pixels: int | None = None
    video_min_pixels: int | None = None
    sampling: Sampling = field(default_factory=Sampling)


@dataclass(frozen=True, slots=True)
class Time:
    """How a family counts the time of a clip beside that of its sound.

    Args:
        step: positions a second; a token of sound is one position.
        chunk: positions of a chunk: clip and sound alternate chunk by chunk (Qwen2.5-Omni); None: each step of the
            clip stands where its time is in the sound (Qwen3-Omni).
        shared: the two opening tokens share a position, and the two closing ones.
    """

    step: float
    chunk: float | None = None
    shared: bool = False


class Media:
    """Counts and features of one model.

    Args:
        image_processor: of the model (`Qwen2VLImageProcessorPil` and its kin); None: no pictures and no clips.
        feature_extractor: `WhisperFeatureExtractor` or its kin; None: no sounds.
        folder: where paths start.
        limits: areas and sampling.
        decoder: of clips.
        clip_step, behind: how a clip's time counts in positions, see `places.positions`; None: as the model whose
            parts these are (Omni where there is a feature extractor, else Qwen2-VL).
        hears: how the audio tower counts: "halved" twice (Qwen2.5-Omni), or in "windows" of a second, at any length
            (Qwen3-Omni).
        audio_in_video: a clip and the sound behind it are one stretch in the order of time (Omni models only).
        stamps: the time of a clip's steps is written as text (Qwen3-VL).

    Raises:
        ConfigError: an image processor without patches.
    """

    flat = False  # positions are multimodal, in three dimensions

    def __init__(
        self,
        image_processor: Any = None,
        feature_extractor: Any = None,
        *,
        folder: Folder | None = None,
        limits: Limits | None = None,
        decoder: Decoder | None = None,
        clip_step: float | None = None,
        behind: str | None = None,
        hears: str = "halved",
        audio_in_video: bool = False,
        stamps: Stamps | None = None,
    ) -> None:
        self.stamps = stamps
        self._arguments: dict[str, Any] | None = None
        omni = feature_extractor is not None
        later = hears == "windows"
        self.hears = hears
        self.clip_step = (13.0 if later else 25.0) if clip_step is None and omni else clip_step
        self.mixed: Time | None = None
        if audio_in_video:
            if not omni or self.clip_step is None:
                raise ConfigError("audio in video needs a model that hears", fix="a Qwen-Omni model")
            self.mixed = Time(self.clip_step, None if later else 2 * self.clip_step, shared=not later)
        self.behind = behind or ("largest" if omni else "side")
        self.image_processor, self.feature_extractor = image_processor, feature_extractor
        self.folder, self.limits = folder or Folder(), limits or Limits()
        self.decoder: Decoder = decoder or Av()
        if image_processor is not None and not hasattr(image_processor, "patch_size"):
            raise ConfigError(
                f"{type(image_processor).__name__} has no patches to count",
                fix="give the image processor of a Qwen-VL or Qwen-Omni model",
            )
        if image_processor is not None:
            self.patch = int(image_processor.patch_size)
            self.merge = int(image_processor.merge_size)
            self.pair = int(image_processor.temporal_patch_size)

    @classmethod
    def of(cls, model: Any, **settings: Any) -> "Media | None":
        """Find the media parts of a model: a processor, or its directory; None where it has none.

        Args:
            model: an object with `image_processor` or `feature_extractor`, or a path with preprocessor_config.json or
                processor_config.json.
            settings: as the constructor's.
        """
        if isinstance(model, (str, Path)):
            given = {"model": str(model), **settings}
            made = cls._of_folder(Path(model), settings)
            if made is not None:
                made._arguments = given  # noqa: SLF001 - so that a file can name it
            return made
        parts = [getattr(model, name, None) for name in ("image_processor", "feature_extractor")]
        if type(model).__name__ == "Qwen3VLProcessor":
            clips: Any = getattr(model, "video_processor", None)
            rule = {} if clips is None else clips.to_dict()
            settings.setdefault("stamps", Stamps.of(rule, need("transformers", why="the processor of a model")))
        return cls(*parts, **settings) if any(p is not None for p in parts) else None

    @classmethod
    def _of_folder(cls, folder: Path, settings: dict[str, Any]) -> "Media | None":
        config = told(folder)
        if not config:
            return None
        transformers = need("transformers", why="the processor of a model")
        images = sounds = None
        if "image_processor_type" in config or "patch_size" in config:
            images = transformers.AutoImageProcessor.from_pretrained(str(folder), backend="pil")
        if "feature_extractor_type" in config or "feature_size" in config:
            sounds = transformers.WhisperFeatureExtractor.from_pretrained(str(folder))
        model = folder / "config.json"
        known: dict[str, Any] = json.loads(model.read_text(encoding="utf-8")) if model.is_file() else {}
        thinker = known.get("thinker_config", known)
        if "tokens_per_second" in thinker.get("vision_config", {}) and sounds is None:
            settings.setdefault("clip_step", float(thinker["vision_config"]["tokens_per_second"]))
        if sounds is not None and "position_id_per_seconds" in thinker:
            settings.setdefault("clip_step", float(thinker["position_id_per_seconds"]))
        kind, maker = known.get("model_type", ""), config.get("processor_class", "")
        if "qwen3_omni" in f"{kind} {maker}".lower().replace("qwen3omni", "qwen3_omni"):
            settings.setdefault("hears", "windows")
        if kind.startswith("qwen3_vl") or maker == "Qwen3VLProcessor":
            settings.setdefault("stamps", Stamps.of(told_of_clips(folder), transformers))
        return cls(images, sounds, **settings)

    @property
    def fingerprint(self) -> str:
        """Name all that decides counts and features."""
        own = [self.limits, self.clip_step, self.behind, self.hears, self.mixed, self.stamps]
        return digest([[told_of(p) for p in (self.image_processor, self.feature_extractor)], repr(own)])

    def measure(self, kind: str, reference: Any) -> Measured:
        """Count the tokens of a medium from its header.

        Raises:
            EncodeError: it is not there, not readable, too extreme, or of a kind that the model does not take.
        """
        if kind == "audio" and self.feature_extractor is not None:
            n = sound_length(reference, self.folder, int(self.feature_extractor.sampling_rate))
            return Measured(self._heard(n))
        if kind == "image" and self.image_processor is not None:
            width, height = self._picture_size(*picture_size(reference, self.folder))
            return self._grid(1, width, height)
        if kind == "video" and self.image_processor is not None:
            clip, places, (rows, columns) = self._chosen(reference)
            grid = (-(-len(places) // self.pair), rows // self.patch, columns // self.patch)
            tokens = grid[0] * grid[1] * grid[2] // self.merge**2
            written = () if self.stamps is None else times(places.tolist(), clip.fps, self.pair)
            return Measured(tokens, grid, self.pair / max(len(places) / clip.seconds, 1e-9), written)
        raise EncodeError(f"this model takes no {kind}", reason=f"model without {kind}", fix="give its processor")

    def features(self, kind: str, references: Sequence[Any]) -> Arrays:
        """Decode media of one kind and make what the model's tower takes, in order."""
        if kind == "image":
            sized = [self._picture(r) for r in references]
            given = self.image_processor(images=sized, return_tensors="np")
            return {"pixel_values": given["pixel_values"], "image_grid_thw": given["image_grid_thw"]}
        if kind == "video":
            parts = [self._clip(r) for r in references]
            return {
                "pixel_values_videos": np.concatenate([p for p, _ in parts]),
                "video_grid_thw": np.array([g for _, g in parts], np.int64),
            }
        rate = int(self.feature_extractor.sampling_rate)
        sounds = [samples(r, self.folder, rate) for r in references]
        if self.hears == "windows":
            return self._windows(sounds, rate)
        given = self.feature_extractor(
            sounds, sampling_rate=rate, padding="max_length", return_attention_mask=True, return_tensors="np"
        )
        return {"input_features": given["input_features"], "feature_attention_mask": given["attention_mask"]}

    def _heard(self, n: int) -> int:
        """Count the tokens of a sound of n samples."""
        if self.hears == "windows":
            return window_tokens(n // int(self.feature_extractor.hop_length))
        return _sound_tokens(_mel_frames(n, self.feature_extractor))

    def _windows(self, sounds: Sequence[NDArray[np.float32]], rate: int) -> Arrays:
        """Make features of any length, and a mask of as many frames as were counted."""
        given = self.feature_extractor(sounds, sampling_rate=rate, padding=True, truncation=False, return_tensors="np")
        features = given["input_features"]
        frames = np.array([len(s) // int(self.feature_extractor.hop_length) for s in sounds])
        mask = (np.arange(features.shape[-1]) < frames[:, None]).astype(np.int32)
        return {"input_features": features, "feature_attention_mask": mask}

    def _picture_size(self, width: int, height: int) -> tuple[int, int]:
        """Give the size of a picture before the model's processor, whose rounding is kept within the user's area."""
        most = self.limits.image_max_pixels
        size = fit_area(width, height, most, self.limits.image_min_pixels)
        if most and math.prod(self._resized(*size)) > most:
            rows, columns = smart_resize(height, width, self.patch * self.merge, 1, most)
            if rows * columns >= self.image_processor.size["shortest_edge"]:
                return columns, rows
        return size

    def _chosen(self, reference: Any) -> tuple[Clip, NDArray[np.int64], tuple[int, int]]:
        """Look at a clip: what it is, which frames are taken, and their height and width."""
        rule = self._sampling()
        clip = probe(reference, self.folder, self.decoder, rule.fps)
        if self.stamps is not None:
            rule = replace(rule, least=min(rule.least, clip.frames))
        if shown(reference) is not None:  # somebody chose these frames
            rule = replace(rule, least=1, multiple=1)
        places = choose_frames(clip.frames, clip.fps, rule)
        most, factor = self.limits.video_max_pixels, self.patch * self.merge
        width, height = fit_area(clip.width, clip.height, most, self.limits.video_min_pixels)
        if self.stamps is None:
            size = self._resized(width, height)
        else:
            size = self.stamps.resized(len(places), width, height, factor, self.pair)
        if most and math.prod(size) > most:
            size = smart_resize(clip.height, clip.width, factor, 1, most)
        return clip, places, size

    def _sampling(self) -> Sampling:
        rule = self.limits.sampling
        if self.stamps is not None:
            own = Sampling(self.stamps.fps, self.stamps.many, self.stamps.fewest, 1)
            return own if rule == Sampling() else rule
        return rule if rule.multiple % self.pair == 0 else Sampling(rule.fps, rule.most, rule.least, self.pair)

    def _grid(self, steps: int, width: int, height: int) -> Measured:
        """Count patches as the image processor would: sides rounded to whole merged patches within its area."""
        rows, columns = self._resized(width, height)
        grid = (steps, rows // self.patch, columns // self.patch)
        return Measured(steps * grid[1] * grid[2] // self.merge**2, grid)

    def _resized(self, width: int, height: int) -> tuple[int, int]:
        size = self.image_processor.size
        least, most = int(size["shortest_edge"]), int(size["longest_edge"])
        return smart_resize(height, width, self.patch * self.merge, least, most)

    def _picture(self, reference: Any) -> Any:
        image = picture(reference, self.folder)
        size = self._picture_size(*image.size)
        return image if size == image.size else image.resize(size, 3)

    def _clip(self, reference: Any) -> tuple[NDArray[np.float32], tuple[int, int, int]]:
        _, places, (rows, columns) = self._chosen(reference)
        frames = read_frames(reference, self.folder, self.decoder, places)
        sized = [f.convert("RGB").resize((columns, rows), 3) for f in frames]
        scales = None if self.stamps is None else (self.stamps.mean, self.stamps.std)
        return patches(np.stack([np.asarray(f) for f in sized]), self.image_processor, scales)


def told_of(processor: Any) -> str:
    """Give the settings of a processor of transformers as text; of anything else its type."""
    settings = processor.to_dict() if hasattr(processor, "to_dict") else {}
    return f"{type(processor).__name__} {json.dumps(settings, sort_keys=True, default=str)}"


def patches(
    frames: NDArray[np.uint8], processor: Any, scales: tuple[Sequence[float], Sequence[float]] | None = None
) -> tuple[NDArray[np.float32], tuple[int, int, int]]:
    """Cut frames into patches in the order that the vision tower reads.

    Args:
        frames: uint8 (n, h, w, 3), sides multiples of patch * merge.
        processor: patch_size, merge_size, temporal_patch_size, image_mean, image_std.
        scales: mean and deviation of each colour, where they are not those of `processor`.

    Returns:
        float32 (t * h * w, 3 * pair * patch * patch) and (t, h, w) in patches; a missing frame of the last group
        repeats the last one.
    """
    p, m, pair = int(processor.patch_size), int(processor.merge_size), int(processor.temporal_patch_size)
    x = frames.astype(np.float32) / np.float32(255)
    mean, std = scales or (processor.image_mean, processor.image_std)
    x = ((x - np.array(mean)) / np.array(std)).astype(np.float32)
    if len(x) % pair:
        x = np.concatenate([x, np.repeat(x[-1:], pair - len(x) % pair, 0)])
    t, h, w = len(x) // pair, x.shape[1] // p, x.shape[2] // p
    x = x.transpose(0, 3, 1, 2).reshape(t, pair, 3, h // m, m, p, w // m, m, p)
    flat = x.transpose(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(t * h * w, 3 * pair * p * p)
    return np.ascontiguousarray(flat), (t, h, w)


def _mel_frames(n: int, extractor: Any) -> int:
    """Count the frames that the extractor's mask has for n samples, begun ones too; it cuts what is over its length."""
    return -(-min(n, int(extractor.n_samples)) // int(extractor.hop_length))


def _sound_tokens(frames: int) -> int:
    """Count what two halvings of the audio tower leave of a spectrogram."""
    tokens = ((frames - 1) // 2 + 1 - 2) // 2 + 1
    if frames < 1 or tokens < 1:
        raise EncodeError("the sound is too short for one token", reason="empty sound")
    return tokens


def window_tokens(frames: int) -> int:
    """Count what an audio tower leaves of a spectrogram that it reads in windows of 100 frames: 13 tokens each.

    Raises:
        EncodeError: too short for a token.
    """
    rest = ((frames % 100 - 1) // 2 + 1 - 1) // 2 + 1
    tokens = (rest - 1) // 2 + 1 + frames // 100 * 13
    if frames < 1 or tokens < 1:
        raise EncodeError("the sound is too short for one token", reason="empty sound")
    return tokens
