"""Pictures of samples as thumbnails in a page.

Decides where pictures are found in a record and how small they become. Without Pillow there are none. Knows no model.
"""

import base64
import io
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from thalweg.core.errors import ThalwegError

SIDE = 160  # pixels of the longer side
MOST = 24  # pictures of a page
COLUMNS = ("images", "image")


def thumbnails(records: "list[Mapping[str, Any]]", root: str | None = None) -> list[str]:
    """Give the pictures of some records as data URLs; one that cannot be read is left out.

    Args:
        records: with pictures in a column "images" or "image", or as typed parts of messages.
        root: folder that relative paths start from.
    """
    if find_spec("PIL") is None:
        return []
    pictures = import_module("thalweg.encode.media.pictures")
    folder = import_module("thalweg.encode.media.references").Folder(root)
    out: list[str] = []
    for record in records:
        for reference in references(record):
            if len(out) == MOST:
                return out
            try:
                image = pictures.picture(reference, folder)
            except (ThalwegError, OSError):
                continue
            image.thumbnail((SIDE, SIDE))
            data = io.BytesIO()
            image.save(data, "JPEG", quality=80)
            out.append("data:image/jpeg;base64," + base64.b64encode(data.getvalue()).decode("ascii"))
    return out


def references(record: Mapping[str, Any]) -> Iterator[Any]:
    """Give the pictures that a record names, in order."""
    for column in COLUMNS:
        value = record.get(column)
        if value is not None:
            yield from value if isinstance(value, list | tuple) else [value]
    for message in record.get("messages") or ():
        content = message.get("content") if isinstance(message, Mapping) else None
        for part in content if isinstance(content, list) else ():
            if isinstance(part, Mapping) and part.get("type") in {"image", "image_url"}:
                yield part.get("image") or part.get("value") or part.get("url") or part.get("path")
