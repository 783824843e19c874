"""Files of strangers: damaged ones cost their record, and say which it is."""

import io
import random

import av
import numpy as np
import pytest
import soundfile
from PIL import Image

from thalweg.encode import EncodeError
from thalweg.encode.media.families import Media
from thalweg.encode.media.references import Folder


def picture(kind):
    out = io.BytesIO()
    tag = Image.Exif()
    tag[0x0112] = 6
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 60, 3), dtype=np.uint8))
    if kind == "GIF":
        image.convert("P").save(out, kind)
    elif kind == "TIFF":
        image.save(out, kind, exif=tag, compression="tiff_lzw")
    else:
        image.save(out, kind, exif=tag)
    return out.getvalue()


def sound(kind):
    out = io.BytesIO()
    wave = np.random.default_rng(0).normal(0, 0.1, (2000, 2)).astype(np.float32)
    soundfile.write(out, wave, 22_050, format=kind, subtype="FLOAT" if kind == "WAV" else None)
    return out.getvalue()


def clip(kind):
    out = io.BytesIO()
    with av.open(out, "w", format=kind) as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 48, 32, "yuv420p"
        for i in range(8):
            frame = Image.new("RGB", (48, 32), (i * 30, 0, 0))
            container.mux(stream.encode(av.VideoFrame.from_image(frame)))
        container.mux(stream.encode())
    return out.getvalue()


def damaged(data, draw):
    """Change some bytes, most of them near the beginning, where headers are; or leave the end out."""
    out = bytearray(data)
    for _ in range(draw.randint(1, 8)):
        out[int(len(out) * draw.random() ** draw.choice([1, 4]))] = draw.choice(
            [0, 1, 127, 128, 255, draw.randrange(256)]
        )
    return bytes(out[: draw.randrange(len(out))] if draw.random() < 0.2 else out)


FILES = {
    "image": (picture, ["JPEG", "PNG", "TIFF", "GIF", "WEBP"]),
    "audio": (sound, ["WAV", "FLAC", "OGG"]),
    "video": (clip, ["mp4", "matroska", "avi"]),
}


@pytest.fixture(scope="module")
def media(image_processor, feature_extractor):
    return Media(image_processor, feature_extractor)


@pytest.mark.filterwarnings("ignore")  # a decoder's own, of headers that are odd
@pytest.mark.parametrize(("kind", "form"), [(kind, form) for kind, (_, forms) in FILES.items() for form in forms])
def test_a_damaged_file_is_read_as_it_was_counted_or_refused_and_never_crashes(media, kind, form):
    data, draw = FILES[kind][0](form), random.Random(form)
    media.features(kind, [data])
    refused = 0
    for _ in range(150 if kind == "image" else 40):
        part = damaged(data, draw)
        try:
            tokens = media.measure(kind, part).tokens
            made = media.features(kind, [part])
        except EncodeError:
            refused += 1
            continue
        if kind == "audio":
            frames = int(made["feature_attention_mask"].sum())
            assert tokens == ((frames - 1) // 2 + 1 - 2) // 2 + 1
            assert np.isfinite(made["input_features"]).all()
        else:
            grid = made["image_grid_thw" if kind == "image" else "video_grid_thw"]
            assert grid.prod() == 4 * tokens
    assert refused


def test_a_sound_that_claims_a_day_is_refused_and_one_without_numbers(media):
    flac = bytearray(sound("FLAC"))
    flac[21] |= 0x0F  # the number of samples in its header
    flac[22:26] = b"\xff" * 4
    with pytest.raises(EncodeError) as caught:
        media.measure("audio", bytes(flac))
    assert caught.value.reason in {"sound too long", "sound not readable"}
    empty = io.BytesIO()
    soundfile.write(empty, np.full(4000, np.nan, np.float32), 16_000, format="WAV", subtype="FLOAT")
    with pytest.raises(EncodeError, match="no numbers"):
        media.features("audio", [empty.getvalue()])


def test_an_error_names_the_file(tmp_path, image_processor):
    (tmp_path / "half.png").write_bytes(picture("PNG")[:200])
    media = Media(image_processor, folder=Folder(str(tmp_path)))
    with pytest.raises(EncodeError, match=r"half\.png is no readable picture"):
        media.features("image", ["half.png"])
