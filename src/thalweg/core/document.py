"""A document of the offline pipeline: text with an id, media and metadata.

Field names are those of the common pipeline libraries, so that their blocks run unchanged on ours.
"""

from dataclasses import dataclass, field
from typing import Any

# Where a document came from, carried in `metadata` under these keys from the reader to the records.
SOURCE, UNIT, ROW = "source", "unit", "row"


@dataclass(slots=True)
class Media:
    """A picture, clip or sound that belongs to a document, by reference or by value."""

    id: str
    type: str
    url: str
    path: str | None = None
    offset: int | None = None
    length: int | None = None
    media_bytes: bytes | None = None
    alt: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Document:
    """One document.

    Args:
        text: its text, any length.
        id: stable and unique within the corpus; never depends on reading order.
        media: pictures and sounds in the order of the text.
        metadata: any values that travel with it; a writer keeps them.
    """

    text: str
    id: str
    media: list[Media] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
