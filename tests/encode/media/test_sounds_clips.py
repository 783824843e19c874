import io
from fractions import Fraction

import av
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
    turned = samples({"array": np.ascontiguousarray(wave.T), "sampling_rate": 8000}, Folder(), 16_000)
    assert np.array_equal(turned, sound)


# B12
@pytest.mark.parametrize(("form", "codec"), [("ipod", "aac"), ("matroska", "libopus"), ("mp4", "aac")])
def test_a_sound_in_a_container_is_read_as_one_in_a_file(media_files, feature_extractor, form, codec):
    rate, t = 48_000, np.arange(96_000) / 48_000
    wave = np.stack([np.sin(2 * np.pi * 440 * t), np.sin(2 * np.pi * 440 * t)]).astype(np.float32) * 0.5
    out = io.BytesIO()
    with av.open(out, "w", format=form) as container:
        shown = None
        if form == "mp4":  # the sound of a clip
            shown = container.add_stream("mpeg4", rate=10)
            shown.width, shown.height, shown.pix_fmt = 48, 32, "yuv420p"
        stream = container.add_stream(codec, rate=rate, layout="stereo")
        for start in range(0, wave.shape[1], 960):
            frame = av.AudioFrame.from_ndarray(
                np.ascontiguousarray(wave[:, start : start + 960]), format="fltp", layout="stereo"
            )
            frame.sample_rate, frame.pts = rate, start
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
        if shown is not None:
            container.mux(shown.encode(av.VideoFrame.from_image(Image.new("RGB", (48, 32)))))
            container.mux(shown.encode())
    data = out.getvalue()
    sound = samples(data, Folder(), 16_000)
    assert len(sound) == sound_length(data, Folder(), 16_000)
    assert abs(len(sound) - 32_000) < 1600
    middle = sound[8_000:24_000]
    loudest = np.argmax(np.abs(np.fft.rfft(middle)))
    assert loudest == pytest.approx(440, abs=2)
    assert 0.4 < np.abs(middle).max() < 0.6
    media = Media(None, feature_extractor)
    frames = int(media.features("audio", [data])["feature_attention_mask"].sum())
    assert media.measure("audio", data).tokens == ((frames - 1) // 2 + 1 - 2) // 2 + 1


def test_whole_numbers_and_lists_are_the_same_sound():
    wave = np.sin(np.arange(4000) / 9) * 0.5
    wanted = samples({"array": wave, "sampling_rate": 16_000}, Folder(), 16_000)
    for array in ((wave * 2**15).astype(np.int16), (wave * 2**31).astype(np.int32), wave.tolist(),
                  (wave * 2**7 + 128).round().astype(np.uint8)):  # fmt: skip
        given = {"array": array, "sampling_rate": 16_000}
        near = 0.01 if getattr(array, "dtype", None) == np.uint8 else 1e-4
        assert np.abs(samples(given, Folder(), 16_000) - wanted).max() < near
    for wrong in (np.zeros(4000, np.int64), np.zeros((2, 2, 2), np.float32), ["a"], [[1.0], [1.0, 2.0]]):
        with pytest.raises(EncodeError):
            sound_length({"array": wrong}, Folder(), 16_000)


@pytest.mark.parametrize(
    "n", [800, 8_000, 16_000, 36_800, 479_840, 480_000, 496_000, *np.random.default_rng(0).integers(500, 5_000, 16)]
)  # whole numbers of steps of the spectrogram, and any
def test_sounds_have_as_many_tokens_as_the_tower_gives(feature_extractor, n):
    media = Media(None, feature_extractor)
    wave = {"array": np.random.default_rng(0).normal(0, 0.1, int(n)).astype(np.float32)}
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
    # at the rule's own rate all frames are taken, whatever a division rounds to
    wanted = frames if fps == rule.fps else int(frames / fps * rule.fps)
    if rule.least <= wanted <= min(frames, rule.most):
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


# K24
@pytest.mark.parametrize("form", ["mp4", "matroska"])
def test_a_clip_of_variable_rate_is_as_long_as_its_frames_are_shown(form):
    times = [*range(0, 1000, 100), 2000, 3000, 4000, 5000]  # milliseconds: ten frames in a second, then one a second
    out = io.BytesIO()
    with av.open(out, "w", format=form) as container:
        stream = container.add_stream("mpeg4", rate=30)
        stream.width, stream.height, stream.pix_fmt = 48, 32, "yuv420p"
        stream.codec_context.time_base = Fraction(1, 1000)
        for at in times:
            frame = av.VideoFrame.from_image(Image.new("RGB", (48, 32)))
            frame.pts, frame.time_base = at, Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    clip = probe(out.getvalue(), Folder(), Av())
    assert clip.frames == 14
    assert clip.seconds == pytest.approx(5, rel=0.02)  # Matroska's header says 30 frames a second: half a second
    assert len(choose_frames(clip.frames, clip.fps, Sampling(fps=2))) == 10


# B9 B10
def test_a_clip_may_be_a_list_of_its_frames_or_an_array_of_them(image_processor, media_files):
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 255, (5, 56, 84, 3), dtype=np.uint8)
    media = Media(image_processor, folder=Folder(str(media_files)), limits=Limits(sampling=Sampling(fps=0.7, most=8)))
    whole = media.measure("video", frames)
    assert whole.grid == (3, 4, 6)  # somebody chose these: all are taken, the last one twice
    assert whole.seconds == pytest.approx(2 / 0.7)
    wanted = media.features("video", [frames])["pixel_values_videos"]
    for same in (list(frames), [Image.fromarray(f) for f in frames], {"array": frames}):
        assert media.measure("video", same) == whole
        assert np.array_equal(media.features("video", [same])["pixel_values_videos"], wanted)
    named = media.features("video", [["wide.jpg", "tall.png"]])  # all have the size of the first
    assert named["video_grid_thw"].tolist() == [list(media.measure("video", ["wide.jpg", "tall.png"]).grid)]
    assert media.measure("video", ["wide.jpg"] * 20).grid[0] == 4
    for wrong, reason in (
        ([], "empty clip"),
        (["gone.jpg"], "medium not found"),
        (frames[0], "unknown kind of medium"),
    ):
        with pytest.raises(EncodeError) as caught:
            media.measure("video", wrong)
        assert caught.value.reason == reason


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
