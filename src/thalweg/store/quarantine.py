"""Where bad samples go: a file of JSON lines with the sample, the reason and the place.

Decides the form of a line. Knows neither what makes a sample bad nor how many are too many.
"""

import base64
import json
import traceback
from pathlib import Path
from typing import Any

import numpy as np


class Quarantine:
    """Appends bad samples to one file, which is made with the first of them.

    Args:
        path: a .jsonl file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0

    def put(self, sample: Any, error: BaseException, **place: Any) -> None:
        """Write one sample with the error and where it came from; on disk when the call returns."""
        line = {
            "error": type(error).__name__,
            "message": str(error),
            "place": place,
            "sample": sample,
            "traceback": "".join(traceback.format_exception(error)),
        }
        text = json.dumps(line, default=plain, ensure_ascii=True)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(text + "\n")
        self.count += 1

    def close(self) -> int:
        """Give the number of samples."""
        return self.count

    def abandon(self) -> None:
        """Remove the file."""
        self.path.unlink(missing_ok=True)


def plain(value: Any) -> Any:
    """Turn what JSON does not know into what it knows: arrays into lists, bytes into base64, the rest into its repr."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, bytes | bytearray):
        return {"base64": base64.b64encode(value).decode()}
    return repr(value)
