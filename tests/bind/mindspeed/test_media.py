"""Keys that decide what a model sees and hears: areas of pictures and frames, frames of clips, the rate of sounds."""

import json

import numpy as np
import pytest

pytest.importorskip("av")
pytest.importorskip("soundfile")
pytest.importorskip("PIL")
import av
import soundfile
from PIL import Image

from thalweg.bind.mindspeed.keys import DatasetParam
from thalweg.bind.mindspeed.samples import Preprocess
from thalweg.core.errors import ConfigError

pytestmark = pytest.mark.slow


@pytest.fixture
def media(tmp_path, model_dir):
    """Media parts of an Omni model under settings, with a picture, a clip (3 s, 10 frames a second) and a sound."""
    from transformers import WhisperFeatureExtractor
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    sees = Qwen2VLImageProcessorPil(min_pixels=28 * 28, max_pixels=28 * 28 * 4096).to_dict()
    folder = tmp_path / "omni"
    folder.mkdir()
    (folder / "preprocessor_config.json").write_text(
        json.dumps({**WhisperFeatureExtractor(feature_size=128).to_dict(), **sees})
    )
    Image.new("RGB", (560, 560), "red").save(tmp_path / "a.png")
    Image.new("RGB", (40, 20), "red").save(tmp_path / "small.png")
    soundfile.write(tmp_path / "a.wav", np.zeros(48_000, np.float32), 48_000)
    with av.open(str(tmp_path / "a.mp4"), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 224, 224, "yuv420p"
        for _ in range(30):
            container.mux(stream.encode(av.VideoFrame.from_image(Image.new("RGB", (224, 224), "blue"))))
        container.mux(stream.encode())

    def under(**preprocess):
        told = {"model_name_or_path": str(folder), **preprocess}
        basic = {"dataset_dir": str(tmp_path)}
        param = {"dataset_type": "huggingface", "preprocess_parameters": told, "basic_parameters": basic}
        return Preprocess(DatasetParam.read(param)).media

    return under


# B5 B6
def test_pictures_are_brought_between_the_two_areas(media):
    tokens = lambda name, **told: media(**told).measure("image", name).tokens
    assert tokens("a.png", image_max_pixels=560 * 560) == 400
    assert tokens("a.png", image_max_pixels=280 * 280) == 100
    assert tokens("small.png", image_min_pixels=0) == 1
    assert tokens("small.png", image_min_pixels=1024) == tokens("small.png") == 2
    assert tokens("small.png", image_min_pixels=112 * 112) == 6 * 3  # twice as wide as high, as it was


# B7 B8 B9 B10
def test_clips_have_the_frames_and_areas_that_the_keys_say(media):
    grid = lambda **told: media(**told).measure("video", "a.mp4").grid
    assert grid(video_fps=2.0)[0] == 3  # 6 frames, two a step
    assert grid(video_fps=4.0)[0] == 6
    assert grid(video_fps=4.0, video_maxlen=4)[0] == 2
    assert grid(video_fps=0.1)[0] == 1
    assert grid(video_fps=100.0)[0] == 15  # no more than there are
    assert grid(video_max_pixels=224 * 224)[1:] == (16, 16)
    assert grid(video_max_pixels=112 * 112)[1:] == (8, 8)
    assert grid(video_max_pixels=448 * 448, video_min_pixels=448 * 448)[1:] == (32, 32)


# B11 B12
def test_sounds_are_brought_to_the_rate_of_the_model_and_to_their_clip_where_told(media):
    assert media().features("audio", ["a.wav"])["feature_attention_mask"].sum() == 100  # 1 s at 16,000, hops of 160
    assert media().mixed is None
    assert media(use_audio_in_video=True).mixed is not None
    with pytest.raises(ConfigError, match="audio_sampling_rate is 8000, and the model hears 16000"):
        media(audio_sampling_rate=8000)
