"""Training data at rest: a directory of Arrow shards and a manifest that appears last."""

from thalweg.store.records.parts import PartWriter, declare_parts, merge_parts
from thalweg.store.records.reader import Records, open_records
from thalweg.store.records.writer import RecordsWriter, create_records

__all__ = [
    "PartWriter",
    "Records",
    "RecordsWriter",
    "create_records",
    "declare_parts",
    "merge_parts",
    "open_records",
]
