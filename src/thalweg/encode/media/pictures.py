"""Pictures: upright size from the header, and upright RGB pixels.

Decides orientation (EXIF, applied once, on size and pixels alike), what a transparent pixel shows, how 16 bits become
8, and which pictures are refused. Knows no model.
"""

import warnings
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.core.extras import need
from thalweg.encode.errors import EncodeError
from thalweg.encode.media.references import Folder, decoding, name_of, unwrapped

_TURNED = {5, 6, 7, 8}  # orientations that swap width and height
_ORIENTATION = 0x0112
LARGEST = 178_956_970  # pixels; a picture that claims more is refused as a decompression bomb (twice Pillow's warning)


@contextmanager
def opened(reference: Any, folder: Folder) -> Generator[Any, None, None]:
    """Open a picture without decoding it, and close what was opened.

    Args:
        reference: path, URL, bytes, {"path", "bytes"}, array (h, w[, 1 | 3 | 4]) of uint8 or uint16, or PIL image.
        folder: where paths start.

    Raises:
        EncodeError: not there, no picture, or a decompression bomb.
    """
    pil = need("PIL.Image", why="pictures")
    value = unwrapped(reference)
    if isinstance(value, pil.Image):
        yield value
    elif isinstance(value, np.ndarray):
        yield _from_array(value)
    else:
        source = folder.open(reference)
        with decoding(reference, "picture"), warnings.catch_warnings():
            warnings.simplefilter("ignore", pil.DecompressionBombWarning)
            image = pil.open(source)
        with image:
            if image.width * image.height > LARGEST:
                raise EncodeError(
                    f"{name_of(reference)} claims {image.width} x {image.height} pixels", reason="picture too large"
                )
            yield image


def picture_size(reference: Any, folder: Folder) -> tuple[int, int]:
    """Give the upright (width, height) of a picture from its header; raises as `opened`."""
    with opened(reference, folder) as image, decoding(reference, "picture"):
        return upright_size(image)


def picture(reference: Any, folder: Folder, background: tuple[int, int, int] = (255, 255, 255)) -> Any:
    """Decode a picture to an upright PIL image of mode RGB; raises as `opened`, and where its data are damaged."""
    with opened(reference, folder) as image, decoding(reference, "picture"):
        return pixels(image, background)


def _from_array(array: NDArray[Any]) -> Any:
    """Take an array as rows of pixels: the last axis is colour only where there are three axes."""
    pil = need("PIL.Image", why="pictures")
    if array.ndim == 3 and array.shape[-1] == 1:
        array = array[..., 0]
    if array.ndim not in {2, 3} or (array.ndim == 3 and array.shape[-1] not in {3, 4}) or 0 in array.shape:
        raise EncodeError(f"an array {array.shape} is no picture (h, w, 3)", reason="unknown kind of medium")
    if array.dtype == np.uint16:
        array = (array >> 8).astype(np.uint8)
    if array.dtype != np.uint8:
        raise EncodeError(f"a picture of {array.dtype} is not uint8", reason="unknown kind of medium")
    return pil.fromarray(np.ascontiguousarray(array))


def upright_size(image: Any) -> tuple[int, int]:
    """Give (width, height) as seen, from the header alone."""
    width, height = image.size
    if image.format == "TIFF":  # Pillow says the upright size of these, and turns them itself
        return width, height
    return (height, width) if image.getexif().get(_ORIENTATION, 1) in _TURNED else (width, height)


def pixels(image: Any, background: tuple[int, int, int] = (255, 255, 255)) -> Any:
    """Decode a picture: upright, RGB, transparency over `background`, 16 bits scaled to 8.

    Returns:
        A PIL image of mode RGB, without an orientation tag.
    """
    pil = need("PIL.Image", why="pictures")
    image = need("PIL.ImageOps", why="pictures").exif_transpose(image)
    if image.mode.startswith("I"):  # 16 bits, or 32 that hold 16
        wide, clear = np.asarray(image).astype(np.int64), image.info.get("transparency")
        image = pil.fromarray((wide.clip(0, 65535) >> 8).astype(np.uint8))
        if clear is not None:
            image.putalpha(pil.fromarray(np.where(wide == clear, 0, 255).astype(np.uint8)))
    elif image.mode == "F":
        image = pil.fromarray(np.asarray(image).clip(0, 255).astype(np.uint8))
    if image.mode in {"La", "RGBa"}:  # colours multiplied by their opacity
        image = image.convert({"La": "LA", "RGBa": "RGBA"}[image.mode])
    if image.mode in {"RGBA", "LA", "PA"} or "transparency" in image.info:
        top = image.convert("RGBA")
        image = pil.new("RGBA", top.size, (*background, 255))
        image.alpha_composite(top)
    return image.convert("RGB")
