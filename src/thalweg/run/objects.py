"""An object store of the S3 kind, in the requests that commits are made of: conditional puts and uncompleted uploads.

Decides how each request is made and which answers are clear. Every method says how many requests it costs. Knows
nothing of runs.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from thalweg.core.errors import ConfigError, RunError
from thalweg.core.extras import need

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PART = 64 << 20  # bytes of one part of an upload
_GONE = {"NoSuchUpload", "404", "NoSuchKey", "NotFound"}


def is_far(path: str) -> bool:
    """Say whether a folder is one of an object store."""
    return "://" in path


@dataclass
class Objects:
    """A prefix of a bucket. Pickles by name and options; connections are made where they are used.

    Args:
        url: such as "s3://bucket/logs".
        options: options of the fsspec file system.

    Raises:
        ConfigError: a store that has neither conditional puts nor uploads that are completed later.
    """

    url: str
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    _made: tuple[int, Any] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        protocol = self.url.partition("://")[0]
        if protocol not in {"s3", "s3a"}:
            raise ConfigError(
                f"a run cannot be kept on {protocol}://: its store has no uploads that are completed later",
                where=self.url,
                fix="use s3:// (any store that speaks S3), or a directory that all nodes see",
            )
        need("s3fs", why="an s3:// URL")
        self.bucket, _, root = self.url.partition("://")[2].rstrip("/").partition("/")
        self.root = f"{root}/" if root else ""

    def __getstate__(self) -> dict[str, Any]:
        """Leave connections behind."""
        return self.__dict__ | {"_made": None}

    def _call(self, method: str, **more: Any) -> Any:
        return self._fs().call_s3(method, Bucket=self.bucket, **more)

    def _fs(self) -> Any:
        if self._made is None or self._made[0] != os.getpid():
            import fsspec  # noqa: PLC0415  (80 ms; only where a URL is used)

            self._made = (os.getpid(), fsspec.filesystem("s3", **self.options))
        return self._made[1]

    def put(self, name: str, data: bytes) -> None:
        """Write an object, whatever was there. One request."""
        self._call("put_object", Key=self.root + name, Body=data)

    def create(self, name: str, data: bytes) -> bool:
        """Write an object unless there is one; False where there is one. One request.

        Raises:
            OSError: the answer was unclear: the object may be there or not.
        """
        try:
            self._call("put_object", Key=self.root + name, Body=data, IfNoneMatch="*")
        except FileExistsError:
            return False
        except OSError as error:
            if code_of(error) in {"PreconditionFailed", "412", "ConditionalRequestConflict"}:
                return False
            raise
        return True

    def get(self, name: str) -> bytes | None:
        """Read an object; None where there is none. One request."""
        from fsspec.asyn import sync  # noqa: PLC0415  (comes with s3fs)

        try:
            body = self._call("get_object", Key=self.root + name)["Body"]
        except FileNotFoundError:
            return None
        data: Any = sync(self._fs().loop, body.read)
        return bytes(data)

    def names(self, prefix: str) -> Iterator[tuple[str, int, float]]:
        """List names below a prefix with sizes and times in seconds, names without the root. One request a thousand."""
        more: dict[str, Any] = {}
        while True:
            page = self._call("list_objects_v2", Prefix=self.root + prefix, **more)
            for found in page.get("Contents", ()):
                yield found["Key"][len(self.root) :], int(found["Size"]), found["LastModified"].timestamp()
            if not page.get("IsTruncated"):
                return
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def delete(self, name: str) -> None:
        """Remove an object; one that is not there is fine. One request."""
        self._call("delete_object", Key=self.root + name)

    def metadata(self, name: str) -> dict[str, str] | None:
        """Read an object's metadata; None where there is none. One request."""
        try:
            return dict(self._call("head_object", Key=self.root + name).get("Metadata", {}))
        except FileNotFoundError:
            return None

    # ---- uploads: bytes that are there, and no object yet
    def upload(
        self, name: str, source: Path, metadata: dict[str, str], begun: Callable[[str], None]
    ) -> tuple[str, list[str]]:
        """Send a file without letting it appear: (upload id, tag of each part). One request, and one each 64 MiB.

        `begun` is called with the upload's id before any part is sent.
        """
        key = self.root + name
        upload = str(self._call("create_multipart_upload", Key=key, Metadata=metadata)["UploadId"])
        tags: list[str] = []
        try:
            begun(upload)
            with source.open("rb") as file:
                while (data := file.read(PART)) or not tags:
                    place = {"UploadId": upload, "PartNumber": len(tags) + 1}
                    tags.append(str(self._call("upload_part", Key=key, Body=data, **place)["ETag"]))
        except BaseException:
            self.abort(name, upload)
            raise
        return upload, tags

    def complete(self, name: str, upload: str, tags: list[str], metadata: dict[str, str]) -> bool:
        """Let an upload appear; False where it was ended by somebody else. One request; two where it is gone.

        An upload that is gone was completed by us or another publisher if the object there has its metadata.
        """
        parts = [{"ETag": tag, "PartNumber": number} for number, tag in enumerate(tags, 1)]
        try:
            self._call(
                "complete_multipart_upload", Key=self.root + name, UploadId=upload, MultipartUpload={"Parts": parts}
            )
        except OSError:  # gone, or an answer that says nothing: the object itself is asked
            found = self.metadata(name)
            return found is not None and metadata.items() <= found.items()
        return True

    def abort(self, name: str, upload: str) -> None:
        """End an upload without an object; one that is gone is fine. One request."""
        try:
            self._call("abort_multipart_upload", Key=self.root + name, UploadId=upload)
        except OSError as error:
            if not isinstance(error, FileNotFoundError) and code_of(error) not in _GONE:
                raise RunError(f"an upload could not be ended: {error}", where=f"{self.url}/{name}") from error

    def uploads(self) -> Iterator[tuple[str, str]]:
        """List (name, upload id) of uploads that are neither complete nor aborted. One request a thousand."""
        more: dict[str, Any] = {}
        while True:
            page = self._call("list_multipart_uploads", Prefix=self.root, **more)
            for found in page.get("Uploads", ()):
                yield found["Key"][len(self.root) :], found["UploadId"]
            if not page.get("IsTruncated"):
                return
            more = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}


def code_of(error: OSError) -> str:
    """Give the store's own word for an error."""
    response = getattr(error.__cause__, "response", None)
    if isinstance(response, dict):
        return str(response.get("Error", {}).get("Code", ""))
    return errno.errorcode.get(error.errno or 0, "")
