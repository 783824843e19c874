"""The two configurations of the MindSpeed-MM document: as they stand, or where it is not beside the checkout, ours.

Ours in `examples/mindspeed` say every key that the document's say; a test holds them to that.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STARTS = {"data_7b.json": '{\n    "dataset_param"', "qwen3omni.yaml": "parallel:\n"}


def document():
    """The document's own text, None where it is not beside the checkout."""
    for parent in Path(__file__).resolve().parents:
        file = parent.parent / "shared" / "documents" / "async_preprocess_iterable_dataset.txt"
        if file.is_file():
            return file.read_text(encoding="utf-8")
    return None


def theirs(name):
    """A configuration as it stands in the document; None without it."""
    text = document()
    if text is None:
        return None
    start = text.index(STARTS[name])
    written = text[start : text.index("bash examples", start)].rstrip()
    return written[: written.rindex("\n")].strip() + "\n"


def ours(name):
    return (ROOT / "examples" / "mindspeed" / name).read_text(encoding="utf-8")


def reference(name):
    return theirs(name) or ours(name)
