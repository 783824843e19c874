"""Files of sets that are joined: where each lies, and rows read again for the fingerprint.

Knows how to open the files of a part whose manifest is at hand, and nothing else.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from thalweg.store.records.column import content_of
from thalweg.store.records.fingerprint import Content
from thalweg.store.records.manifest import File, Manifest
from thalweg.store.records.opened import Opened, Source


class Files(Protocol):
    """The files of sets that are joined."""

    @property
    def folder(self) -> Path:
        """Where new files go."""
        ...

    def path(self, file: File) -> Path:
        """Give the path of one of the files on this machine."""
        ...

    def open(self, manifest: Manifest) -> Opened:
        """Open what a manifest names, without its facts."""
        ...


class Here:
    """All files in one directory.

    Args:
        folder: the directory.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, file: File) -> Path:
        """Give the path of a file."""
        return self.folder / file.name

    def open(self, manifest: Manifest) -> Opened:
        """Open what a manifest names, without its facts."""
        return Opened(Source(str(self.folder), io="pread"), self.folder, manifest, facts={})


class Reread:
    """Reads the array contents of rows of several sets."""

    def __init__(self, files: Files, parts: Sequence[Manifest]) -> None:
        self._files, self._parts = files, parts

    def __call__(self, which: int, first: int, end: int) -> dict[str, Content]:
        """Give the contents of rows [first, end) of one of the sets."""
        opened = self._files.open(self._parts[which])
        rows = np.arange(first, end)
        blocks = opened.table.of_rows(rows)
        opened.touch(blocks)
        out: dict[str, Content] = {}
        for name in opened.manifest.columns:
            column = opened.decoder.column(name, rows, blocks)
            content = content_of(column) if isinstance(column, list) else column.content()
            if content is not None:
                out[name] = content
        return out
