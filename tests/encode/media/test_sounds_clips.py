import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from thalweg.encode import EncodeError
from thalweg.encode.media.families import Limits, Media, patches
from thalweg.encode.media.references import Folder
from thalweg.encode.media.sounds import samples, sound_length
from thalweg.encode.media.videos import Av, Sampling, choose_frames, probe, read_frames


# B12
@pytest.mark.parametrize("name", ["stereo.wav", "mono.flac"])
def test_a_sound_is_mono_at_the_model_s_rate_and_as_long_as_its_header_says(media_files, name):
    folder = Folder(str(media_files))
    sound = samples(name, folder, 16_000)
    assert sound.dtype == np.float32
    assert sound.ndim == 1
    assert len(sound) == sound_length(name, folder, 16_000) == {"stereo.wav": 32_000, "mono.flac": 16_000}[name]
    assert 0.1 < np.abs(sound).max() < 1
    data = (media_files / name).read_bytes()
    assert np.array_equal(samples(data, folder, 16_000), sound)


def test_a_sound_may_be_an_array_with_its_rate():
    wave = np.stack([np.ones(8000), -np.ones(8000)], -1).astype(np.float32)
    sound = samples({"array": wave, "sampling_rate": 8000}, Folder(), 16_000)
    assert len(sound) == 16_000
    assert np.abs(sound).max() < 1e-6  # both channels count


@pytest.mark.parametrize("seconds", [0.05, 0.5, 1.0, 2.3, 29.99, 30.0, 31.0])
def test_sounds_have_as_many_tokens_as_the_tower_gives(feature_extractor, seconds):
    media = Media(None, feature_extractor)
    wave = {"array": np.random.default_rng(0).normal(0, 0.1, int(16_000 * seconds)).astype(np.float32)}
    frames = int(media.features("audio", [wave])["feature_attention_mask"].sum())
    assert media.measure("audio", wave).tokens == ((frames - 1) // 2 + 1 - 2) // 2 + 1


def test_an_empty_or_broken_sound_is_refused(tmp_path, feature_extractor):
    (tmp_path / "a.wav").write_text("no sound")
    media = Media(None, feature_extractor, folder=Folder(str(tmp_path)))
    for reference, reason in [
        ("a.wav", "sound not readable"),
        ({"array": np.zeros(0)}, "empty sound"),
        ({"array": np.zeros(100)}, "empty sound"),
    ]:
        with pytest.raises(EncodeError) as caught:
            media.measure("audio", reference)
        assert caught.value.reason == reason


# B9 B10 K24
@given(
    frames=st.integers(1, 5000),
    fps=st.floats(0.5, 120),
    rule=st.builds(Sampling, st.floats(0.1, 8), st.integers(4, 64), st.integers(2, 4), st.sampled_from([1, 2])),
)
def test_frames_are_chosen_within_the_clip_in_the_right_number(frames, fps, rule):
    chosen = choose_frames(frames, fps, rule)
    assert len(chosen) % rule.multiple == 0
    assert rule.least <= len(chosen) <= max(rule.most, rule.least)
    assert chosen.min() >= 0
    assert chosen.max() < frames
    assert (np.diff(chosen) >= 0).all()
    if rule.least <= (wanted := int(frames / fps * rule.fps)) <= min(frames, rule.most):
        assert len(chosen) == wanted - wanted % rule.multiple or wanted - wanted % rule.multiple < rule.least


class Fake:
    """A decoder without a codec: its header may be wrong."""

    def __init__(self, declared, decoded, fps):
        self.declared, self.decoded, self.fps = declared, decoded, fps

    def probe(self, reference, folder):
        return self.declared, self.fps, 56, 56

    def frames(self, reference, folder):
        return (Image.new("RGB", (56, 56), (i % 256, 0, 0)) for i in range(self.decoded))


# K24
@pytest.mark.parametrize(
    ("declared", "decoded", "fps", "reason"),
    [
        (0, 0, 30, "empty clip"), (10, 0, 30, "empty clip"), (1, 1, 30, None), (1, 30, 30, None), (30, 29, 30, None),
        (30, 31, 30, None), (30, 30, 0, "clip without a rate"), (30, 30, None, "clip without a rate"),
        (30, 30, 23.976, None), (1, 1, 1 / 0.033, None), (300, 299, 10, None),
    ],
)  # fmt: skip
def test_wrong_headers_cost_one_clip_and_never_a_token(image_processor, declared, decoded, fps, reason):
    rule = Sampling(fps=2, most=16, least=4, multiple=2)
    media = Media(image_processor, decoder=Fake(declared, decoded, fps), limits=Limits(sampling=rule))

    def both():
        measured = media.measure("video", "clip")
        return measured, media.features("video", ["clip"])

    if reason is not None:
        with pytest.raises(EncodeError) as caught:
            both()
        assert caught.value.reason == reason
        return
    measured, made = both()
    assert made["video_grid_thw"].tolist() == [list(measured.grid)]
    assert len(made["pixel_values_videos"]) == 4 * measured.tokens
    assert measured.grid[0] >= 2


def test_a_real_clip_is_counted_by_its_packets_and_decoded_in_order(media_files):
    folder = Folder(str(media_files))
    clip = probe("clip.mp4", folder, Av())
    assert (clip.frames, clip.fps, clip.width, clip.height) == (35, 10, 96, 64)
    frames = read_frames("clip.mp4", folder, Av(), choose_frames(clip.frames, clip.fps, Sampling()))
    assert len(frames) == 6
    assert not np.array_equal(np.asarray(frames[0]), np.asarray(frames[-1]))


def test_patches_of_a_frame_are_those_of_the_image_processor(image_processor):
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (84, 112, 3), dtype=np.uint8))
    theirs = image_processor(images=[image], return_tensors="np")
    ours, grid = patches(np.asarray(image)[None], image_processor)
    assert theirs["image_grid_thw"].tolist() == [list(grid)]
    assert np.abs(theirs["pixel_values"] - ours).max() < 1e-6


# B7 B8
def test_the_area_of_each_frame_is_kept_within_its_limits(image_processor, media_files):
    folder = Folder(str(media_files))
    tokens = [
        Media(image_processor, folder=folder, limits=limits).measure("video", "clip.mp4").tokens
        for limits in (
            Limits(video_max_pixels=3136),
            Limits(),
            Limits(video_min_pixels=12_000),
            Limits(video_min_pixels=0),
        )
    ]
    assert tokens[0] < tokens[1] < tokens[2]
    assert tokens[3] == tokens[1]
