"""Why one record cannot be encoded: an error that names the record and carries a short reason to count by."""

from typing import Any

from thalweg.core.errors import SampleError


class EncodeError(SampleError):
    """One record that cannot become a sample. `reason` is a short phrase, the same for all records of its kind.

    Args:
        what: what is wrong with this record.
        reason: what to count it under, such as "no trained token".
        where: id of the record, where it is known.
        fix: what to try.
    """

    where: str | None

    def __init__(
        self, what: str, *, reason: str = "not encodable", where: str | None = None, fix: str | None = None
    ) -> None:
        super().__init__(what, where=where, fix=fix)
        self.reason = reason

    def named(self, where: str | None) -> "EncodeError":
        """Give the same error with the record's id in it, unless it has one."""
        if self.where is None and where:
            self.where = where
        return self


def record_id(record: Any) -> str | None:
    """Find what names a record: its `id`, else its `_id` or `uuid`."""
    for key in ("id", "_id", "uuid"):
        value = record.get(key)
        if value is not None:
            return f"record {value}"
    return None
