import base64
import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from thalweg.encode import EncodeError
from thalweg.encode.media import pictures
from thalweg.encode.media.areas import fit_area, smart_resize
from thalweg.encode.media.families import Limits, Media
from thalweg.encode.media.pictures import picture, picture_size, pixels
from thalweg.encode.media.references import Folder

RED, BLUE = (255, 0, 0), (0, 0, 255)


def encoded(image, name, **more):
    out = io.BytesIO()
    image.save(out, name, **more)
    return out.getvalue()


def turned(orientation, name):
    image = Image.new("RGB", (8, 4), RED)
    image.paste(BLUE, (4, 0, 8, 4))
    tag = Image.Exif()
    tag[0x0112] = orientation
    return encoded(image, name, exif=tag, **({"quality": 100, "subsampling": 0} if name == "JPEG" else {}))


# K20
@pytest.mark.parametrize("name", ["JPEG", "PNG", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_is_upright_on_every_path_and_only_once(tmp_path, name, orientation):
    data = turned(orientation, name)
    path = tmp_path / "photo"
    path.write_bytes(data)
    folder = Folder(str(tmp_path))
    ways = ["photo", data, {"bytes": data, "path": None}, {"path": "photo"}, Image.open(io.BytesIO(data)), path]
    seen = []
    for way in ways:
        size = picture_size(way, folder)
        shown = picture(way, folder)
        assert shown.size == size == ((4, 8) if orientation > 4 else (8, 4))
        seen.append(np.asarray(shown))
        stored = encoded(shown, "PNG")  # a store and a read later it is still the same
        assert np.array_equal(np.asarray(picture(stored, folder)), seen[-1])
    assert all(np.array_equal(s, seen[0]) for s in seen)
    corners = {1: RED, 2: BLUE, 3: BLUE, 4: RED, 5: RED, 6: RED, 7: BLUE, 8: BLUE}
    assert np.abs(seen[0][0, 0].astype(int) - corners[orientation]).max() < 60


@pytest.mark.parametrize(
    "mode", ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "HSV", "I", "I;16", "F", "La", "RGBa"]
)
def test_every_mode_of_a_picture_becomes_upright_rgb(mode):
    source = {"La": "LA", "RGBa": "RGBA", "PA": "LA"}.get(mode, mode)
    image = Image.new(source, (5, 3))
    image = image.convert(mode) if source != mode else image
    shown = pixels(image)
    assert (shown.mode, shown.size) == ("RGB", (5, 3))


def test_a_transparent_pixel_shows_the_background_and_16_bits_are_scaled():
    clear = Image.new("RGBA", (2, 2), (10, 20, 30, 0))
    assert np.asarray(pixels(clear))[0, 0].tolist() == [255, 255, 255]
    assert np.asarray(pixels(clear, (0, 0, 0)))[0, 0].tolist() == [0, 0, 0]
    palette = Image.new("P", (2, 2))
    palette.info["transparency"] = 0
    assert np.asarray(pixels(palette))[0, 0].tolist() == [255, 255, 255]
    deep = Image.fromarray(np.full((2, 2), 65535, np.uint16))
    assert np.asarray(pixels(deep))[0, 0].tolist() == [255, 255, 255]
    clear = io.BytesIO()
    Image.fromarray(np.array([[0, 65535], [300, 5]], np.uint16)).save(clear, "PNG", transparency=300)
    assert np.asarray(picture(clear.getvalue(), Folder()))[..., 0].tolist() == [[0, 255], [255, 0]]
    array = np.full((2, 3, 3), 40_000, np.uint16)
    assert np.asarray(picture(array, Folder()))[0, 0].tolist() == [156, 156, 156]


# K22
@pytest.mark.parametrize("size", [(1, 1), (1, 1000), (1000, 1), (3, 3), (3, 500), (1, 3), (2000, 2), (10, 1000)])
def test_extreme_shapes_have_the_tokens_of_the_model_or_are_refused(image_processor, size):
    image = Image.new("RGB", size, RED)
    media = Media(image_processor)
    if max(size) > 200 * min(size):
        with pytest.raises(EncodeError) as caught:
            media.measure("image", image)
        assert caught.value.reason == "picture ratio too extreme"
        return
    measured = media.measure("image", image)
    made = media.features("image", [image])
    assert made["image_grid_thw"].tolist() == [list(measured.grid)]
    assert len(made["pixel_values"]) == np.prod(measured.grid) == measured.tokens * 4
    assert min(measured.grid[1:]) >= 2
    red = made["pixel_values"].reshape(len(made["pixel_values"]), 3, -1).mean((0, 2))
    assert red[0] > 1.5
    assert red[1] < -1.5  # not grey: the colours are read from the right axis


@given(
    width=st.integers(1, 3000), height=st.integers(1, 3000), most=st.integers(28 * 28, 10**6),
)  # fmt: skip
def test_sizes_are_those_of_the_model_s_own_rule(width, height, most):
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize as theirs

    if max(width, height) <= 200 * min(width, height):
        assert smart_resize(height, width, 28, 56 * 56, most) == theirs(height, width, 28, 56 * 56, most)


# B5 B6
@given(width=st.integers(1, 5000), height=st.integers(1, 5000), most=st.integers(16, 10**6))
def test_an_area_is_kept_with_the_aspect(width, height, most):
    w, h = fit_area(width, height, most)
    assert min(w, h) >= 1
    if width * height <= most:
        assert (w, h) == (width, height)
    elif min(w, h) > 1:
        assert w * h <= most
        assert abs(w / h - width / height) <= (w + h) / h / h + 1e-9
    assert fit_area(width, height, None, 0) == (width, height)


# B5 B6
@settings(deadline=None)
@given(width=st.integers(1, 3000), height=st.integers(1, 3000), most=st.integers(28 * 28, 10**6))
def test_the_area_that_the_user_allows_holds_after_the_models_rounding(width, height, most):
    if max(width, height) > 200 * min(width, height):
        return
    media = Media(Qwen2VLImageProcessorPil(min_pixels=28 * 28, max_pixels=10**7), limits=Limits(image_max_pixels=most))
    _, rows, columns = media._grid(1, *media._picture_size(width, height)).grid
    assert rows * columns * 14 * 14 <= most or min(rows, columns) == 2  # a side is never less than a merged patch
    rounded = media._resized(*fit_area(width, height, most))
    held = rounded if rounded[0] * rounded[1] <= most else smart_resize(height, width, 28, 1, most)
    assert (rows * 14, columns * 14) == held


# B5
def test_pixels_are_counted_alike_where_an_area_would_be_left_by_rounding(media_files):
    sees = Qwen2VLImageProcessorPil(min_pixels=28 * 28, max_pixels=10**7)
    for most in (784, 5000, 15_000, 30_000, 60_000):
        media = Media(sees, folder=Folder(str(media_files)), limits=Limits(image_max_pixels=most))
        measured = media.measure("image", "wide.jpg")
        made = media.features("image", ["wide.jpg"])
        assert made["image_grid_thw"].tolist() == [list(measured.grid)]
        assert measured.tokens * 784 <= most
    # a processor whose own least is more than that keeps it
    large = Media(Qwen2VLImageProcessorPil(min_pixels=56 * 56, max_pixels=10**7), limits=Limits(image_max_pixels=784))
    black = np.zeros((200, 200, 3), np.uint8)
    assert large.measure("image", black).tokens == 4 == large.features("image", [black])["image_grid_thw"].prod() // 4


def test_what_is_no_picture_is_refused_by_its_name(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("no picture")
    folder = Folder(str(tmp_path))
    for reference, reason in [
        ("a.txt", "picture not readable"),
        ("gone.jpg", "medium not found"),
        ("a" * 5000, "medium not found"),
        ("a\0b", "medium not found"),
        (3, "unknown kind of medium"),
        (np.zeros((2, 2, 7), np.uint8), "unknown kind of medium"),
        (np.zeros((0, 2, 3), np.uint8), "unknown kind of medium"),
        (np.zeros((2, 2), np.float32), "unknown kind of medium"),
    ]:
        with pytest.raises(EncodeError) as caught:
            picture(reference, folder)
        assert caught.value.reason == reason
    monkeypatch.setattr(pictures, "LARGEST", 10)
    with pytest.raises(EncodeError, match="claims 4 x 4 pixels"):
        picture_size(encoded(Image.new("RGB", (4, 4)), "PNG"), folder)
    monkeypatch.undo()
    cut = encoded(Image.new("RGB", (400, 400), RED), "PNG")
    with pytest.raises(EncodeError) as caught:
        picture(cut[: len(cut) // 2], Folder())
    assert caught.value.reason == "picture not readable"


# B14 C49
def test_references_are_read_from_a_folder_or_any_url(tmp_path):
    import fsspec

    data = encoded(Image.new("RGB", (4, 4), RED), "PNG")
    with fsspec.open("memory://bucket/x.png", "wb") as file:
        file.write(data)
    assert picture_size("memory://bucket/x.png", Folder()) == (4, 4)
    assert picture_size("x.png", Folder("memory://bucket")) == (4, 4)
    inline = "data:image/png;base64," + base64.b64encode(data).decode()
    for way in (inline, {"url": inline}, {"data": inline.partition(",")[2], "format": "png"}):
        assert picture_size(way, Folder("/nowhere")) == (4, 4)
    with pytest.raises(EncodeError, match="no base64"):
        picture_size("data:image/png;base64,%%", Folder())
    (tmp_path / "y.png").write_bytes(data)
    assert picture_size(str(tmp_path / "y.png"), Folder("/nowhere")) == (4, 4)


def test_a_read_is_tried_again_and_given_up_in_time(monkeypatch):
    import threading

    import fsspec

    tries = []
    held = threading.Event()

    def fails(*args, **kwargs):
        tries.append(args)
        raise OSError("reset")

    monkeypatch.setattr(fsspec, "open", fails)
    with pytest.raises(EncodeError, match="cannot be read: reset"):
        Folder(tries=3).read("memory://x")
    assert len(tries) == 3
    monkeypatch.setattr(fsspec, "open", lambda *a, **k: held.wait(60))
    with pytest.raises(EncodeError, match=r"did not come within 0\.01 s"):
        Folder(timeout=0.01, tries=1).read("memory://x")
    assert not held.is_set()  # it was not waited for
    (left,) = [t for t in threading.enumerate() if t.name == "thalweg-media"]
    held.set()
    left.join()
