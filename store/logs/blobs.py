"""Where sealed segments lie: a directory, or a bucket of an S3-compatible store. Objects are written once.

`tests/store/test_logs_blobs.py` holds every store to the same contract.
"""

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote, urlsplit

from domain.errors import HeadraceError

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")
_S3_TIMEOUT_SECONDS = 20
_FOLDER_TRIES = 20


class BlobError(HeadraceError):
    """The store cannot be used as asked; the message names it."""


class BlobMissing(BlobError):
    """There is no object of that name."""


class BlobStore(Protocol):
    """Named objects. Every method blocks: call it in a thread. Failures of the store itself raise OSError or BlobError.

    Names are relative paths of letters, digits, `_`, `-` and `.`; any other raises ValueError.
    """

    def put(self, name: str, data: bytes) -> None:
        """Stores an object whole: once this returns it survives a crash, and before that nobody sees a part of it."""

    def get(self, name: str, offset: int, length: int) -> bytes:
        """`length` bytes, at least 1, from `offset`. Raises BlobMissing, or BlobError when the object is shorter."""

    def delete(self, name: str) -> None:
        """Removes the object; one that is not there is fine."""


class FileBlobStore:
    """Objects are files under a directory, which is made when first needed."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def put(self, name: str, data: bytes) -> None:
        path = self._path(name)
        descriptor, temporary = _new_file_in(path.parent)
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
        _sync_directory(path.parent)

    def get(self, name: str, offset: int, length: int) -> bytes:
        try:
            with open(self._path(name), "rb") as file:
                file.seek(offset)
                return _whole(name, offset, length, file.read(length))
        except FileNotFoundError as error:
            raise BlobMissing(f"no log segment {name} under {self._root}") from error

    def delete(self, name: str) -> None:
        path = self._path(name)
        with suppress(FileNotFoundError):
            path.unlink()
        for folder in path.relative_to(self._root).parents:
            with suppress(OSError):  # not empty, or already gone
                if folder != Path():
                    (self._root / folder).rmdir()

    def _path(self, name: str) -> Path:
        return self._root / _checked(name)


class S3BlobStore:
    """Objects of a bucket under a prefix. Credentials come from the environment, as boto3 finds them."""

    def __init__(self, client: "S3Client", bucket: str, prefix: str) -> None:
        self._client, self._bucket, self._prefix = client, bucket, prefix

    def put(self, name: str, data: bytes) -> None:
        with self._errors(name):
            self._client.put_object(Bucket=self._bucket, Key=self._key(name), Body=data)

    def get(self, name: str, offset: int, length: int) -> bytes:
        span = f"bytes={offset}-{offset + length - 1}"
        with self._errors(name):
            answer = self._client.get_object(Bucket=self._bucket, Key=self._key(name), Range=span)
            return _whole(name, offset, length, answer["Body"].read())

    def delete(self, name: str) -> None:
        with self._errors(name):
            self._client.delete_object(Bucket=self._bucket, Key=self._key(name))

    def _key(self, name: str) -> str:
        return self._prefix + _checked(name)

    @contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            yield
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") == "NoSuchKey":
                raise BlobMissing(f"no log segment {name} in bucket {self._bucket}") from error
            raise BlobError(f"log segment {name} in bucket {self._bucket}: {error}") from error
        except BotoCoreError as error:
            raise BlobError(f"log segment {name} in bucket {self._bucket}: {error}") from error


def open_blob_store(url: str, *, s3_endpoint_url: str | None = None) -> BlobStore:
    """The store at `file:///dir` or `s3://bucket/prefix`. Raises BlobError for any other URL, and when S3 is asked for
    and boto3 is not installed."""
    parts = urlsplit(url)
    if parts.scheme == "file" and not parts.netloc and parts.path.startswith("/"):
        return FileBlobStore(Path(unquote(parts.path)))
    if parts.scheme == "s3" and parts.netloc:
        prefix = parts.path.strip("/")
        return S3BlobStore(_s3_client(s3_endpoint_url), parts.netloc, f"{prefix}/" if prefix else "")
    raise BlobError(f"log store {url!r} is neither file:///dir nor s3://bucket/prefix")


def _s3_client(endpoint_url: str | None) -> "S3Client":
    try:
        import boto3
        from botocore.config import Config
    except ImportError as error:
        raise BlobError("a log store in S3 needs boto3: install headrace[aws]") from error
    config = Config(
        connect_timeout=_S3_TIMEOUT_SECONDS,
        read_timeout=_S3_TIMEOUT_SECONDS,
        retries={"mode": "standard", "total_max_attempts": 3},
        # Stores other than AWS need not know the newer checksums.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    return boto3.client("s3", endpoint_url=endpoint_url, config=config)


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of a log segment")
    return name


def _whole(name: str, offset: int, length: int, data: bytes) -> bytes:
    if len(data) != length:
        raise BlobError(f"log segment {name} has {len(data)} of {length} bytes at {offset}")
    return data


def _new_file_in(folder: Path) -> tuple[int, str]:
    """An open descriptor and its path. A `delete` in another thread may take the empty folder away just after it was
    made, or while it is: then again."""
    for remaining in reversed(range(_FOLDER_TRIES)):
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            return tempfile.mkstemp(dir=folder, prefix=".", suffix=".part")
        except (FileNotFoundError, FileExistsError):
            if not remaining:
                raise
    raise AssertionError("unreachable")


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
