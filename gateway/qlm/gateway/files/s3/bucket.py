"""A bucket below a prefix: whole objects, conditional writes, ranges, and lists, each with a time limit.

A conditional write whose answer was lost is tried again, and then fails by the write itself.
So what is written under a condition must differ between writers: then the content tells whose write won.
"""

import email.utils
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar

import orjson
from botocore.client import BaseClient
from botocore.exceptions import ClientError

from qlm.domain.errors import StorageUnavailableError
from qlm.gateway.files.s3.calls import Calls
from qlm.gateway.files.s3.errors import as_qlm, code_of

P = ParamSpec("P")
T = TypeVar("T")

CONFLICTS_MAX: Final = 5
"""Tries of a conditional write that meets another one in progress."""

KEYS_MAX: Final = 1000
"""Most objects that a call lists."""

SMALL_BYTES_MAX: Final = 256 * 1024
"""Content that a server is to have taken soon."""

_MISSING: Final = ("NoSuchKey", "404")
_FAILED_CONDITION: Final = ("PreconditionFailed", "412")
_IN_PROGRESS: Final = ("ConditionalRequestConflict", "OperationAborted", "409")


@dataclass(frozen=True, slots=True)
class Entry:
    """An object in a list.

    Attributes:
        key: Its key below the prefix.
        size_bytes: Its size.
        changed_s: The time at which it was written, by the clock of the storage, seconds since the epoch.
    """

    key: str
    size_bytes: int
    changed_s: float


@dataclass(frozen=True, slots=True)
class Stamped:
    """An object with its version.

    Attributes:
        value: Its JSON.
        etag: Its version, for conditions.
        age_s: Time since it was written, by the clock of the storage, seconds.
    """

    value: Any
    etag: str
    age_s: float


class Bucket:
    """A bucket below a prefix. Calls raise `StorageUnavailableError`, or `StorageRefusedError`."""

    def __init__(
        self, client: BaseClient, large_client: BaseClient, name: str, prefix: str, timeout_s: float
    ) -> None:
        """Use clients whose calls have time limits, and are tried once.

        Args:
            client: For calls that move little.
            large_client: For those that move much.
            name: Name of the bucket.
            prefix: What its keys begin with.
            timeout_s: Time limit of a call with all its tries, seconds.
        """
        self._client: Any = client
        self._large_client: Any = large_client
        self.name = name
        self.where = f"the S3 bucket {name} at {client.meta.endpoint_url}"
        """The bucket and its server, for messages."""
        self._prefix = prefix
        self._calls = Calls(self.where, timeout_s)

    # --- whole objects

    def get(self, key: str) -> bytes | None:
        """Return an object; None if there is none."""
        try:
            return self._read(Key=self._key(key))[1]
        except FileNotFoundError:
            return None

    def get_json(self, key: str) -> Any:
        """Return the JSON in an object; None if there is none."""
        data = self.get(key)
        return None if data is None else orjson.loads(data)

    def get_stamped(self, key: str) -> Stamped | None:
        """Return the JSON in an object with its version and age; None if there is none."""
        try:
            answer, data = self._read(Key=self._key(key))
        except FileNotFoundError:
            return None
        value = orjson.loads(data)
        return Stamped(value, answer["ETag"], self._now_s(answer) - answer["LastModified"].timestamp())

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """Return the bytes of an object from `start` up to and without `end`.

        Raises:
            FileNotFoundError: There is no such object.
        """
        return self._read(Key=self._key(key), Range=f"bytes={start}-{end - 1}")[1]

    def size_bytes(self, key: str) -> int | None:
        """Return the size of an object; None if there is none."""
        try:
            answer = self._call(self._client.head_object, Bucket=self.name, Key=self._key(key))
        except FileNotFoundError:
            return None
        return int(answer["ContentLength"])

    def put(self, key: str, data: bytes) -> None:
        """Write an object, which replaces one that is there."""
        client = self._client if len(data) <= SMALL_BYTES_MAX else self._large_client
        self._call(client.put_object, Bucket=self.name, Key=self._key(key), Body=data)

    def put_json(self, key: str, value: Any) -> None:
        """Write JSON to an object, which replaces one that is there."""
        self.put(key, orjson.dumps(value))

    def put_json_if(self, key: str, value: Any, etag: str | None = None) -> str | None:
        """Write JSON to an object of a version, or to none that exists; return the new version.

        Args:
            key: Its key.
            value: What is written, unlike what any other writes.
            etag: The version that is replaced; None if there must be none.

        Returns:
            The version; None if the condition does not hold.
        """
        condition = {"IfNoneMatch": "*"} if etag is None else {"IfMatch": etag}
        call = {"Bucket": self.name, "Key": self._key(key), "Body": orjson.dumps(value), **condition}
        for _ in range(CONFLICTS_MAX):
            try:
                return str(self._calls.make(partial(self._client.put_object, **call))["ETag"])
            except ClientError as error:
                code = code_of(error)
                if code in _IN_PROGRESS:
                    continue
                if code not in (*_FAILED_CONDITION, *_MISSING):
                    raise as_qlm(error, self.where) from error
                break
        found = self.get_stamped(key)
        return found.etag if found is not None and found.value == orjson.loads(orjson.dumps(value)) else None

    def copy(self, source: str, target: str) -> None:
        """Copy an object of up to 5 GiB inside the storage.

        Raises:
            FileNotFoundError: There is no such object.
        """
        from_key = {"Bucket": self.name, "Key": self._key(source)}
        self._call(
            self._large_client.copy_object, Bucket=self.name, Key=self._key(target), CopySource=from_key
        )

    def delete(self, *keys: str) -> None:
        """Delete objects; those that are not there are none."""
        for key in keys:
            self._call(self._client.delete_object, Bucket=self.name, Key=self._key(key))

    # --- lists

    def entries(self, prefix: str, after: str | None = None, at_once: int = KEYS_MAX) -> Iterator[Entry]:
        """Yield the objects whose keys begin so, in the order of keys; each further call is made when needed.

        Args:
            prefix: What their keys begin with.
            after: Key behind which they begin, which need not exist; None for the first.
            at_once: Most objects of a call.
        """
        named: dict[str, Any] = {"MaxKeys": min(at_once, KEYS_MAX)}
        if after is not None:
            named["StartAfter"] = self._key(after)
        marks = {"NextContinuationToken": "ContinuationToken"}
        for page in self._listed(self._client.list_objects_v2, marks, prefix, **named):
            for each in page.get("Contents", ()):
                changed_s = each["LastModified"].timestamp()
                yield Entry(each["Key"].removeprefix(self._prefix), each["Size"], changed_s)

    def keys(self, prefix: str) -> list[str]:
        """Return the keys that begin so, in their order."""
        return [each.key for each in self.entries(prefix)]

    def now_s(self) -> float:
        """Return the time by the clock of the storage, seconds since the epoch."""
        answer = self._call(
            self._client.list_objects_v2, Bucket=self.name, Prefix=self._key("open/"), MaxKeys=1
        )
        return self._now_s(answer)

    # --- objects in parts

    def begin_parts(self, key: str) -> str:
        """Begin an object that comes in parts; return the id of its upload."""
        answer = self._call(self._client.create_multipart_upload, Bucket=self.name, Key=self._key(key))
        return str(answer["UploadId"])

    def put_part(self, key: str, upload: str, number: int, data: bytes) -> str:
        """Write a part; return its version."""
        call = {"Bucket": self.name, "Key": self._key(key), "UploadId": upload, "PartNumber": number}
        return str(self._call(self._large_client.upload_part, Body=data, **call)["ETag"])

    def end_parts(self, key: str, upload: str, etags: list[str]) -> None:
        """Make an object of all parts; one that is there is of an earlier try, whose answer was lost."""
        parts = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(etags, 1)]
        call = {"Bucket": self.name, "Key": self._key(key), "UploadId": upload}
        try:
            self._call(self._large_client.complete_multipart_upload, MultipartUpload={"Parts": parts}, **call)
        except FileNotFoundError as error:
            if self.size_bytes(key) is None:
                raise StorageUnavailableError(f"{self.where} has lost the parts of {key}") from error

    def abort_parts(self, key: str, upload: str) -> None:
        """Delete the parts of an object that does not come."""
        call = {"Bucket": self.name, "Key": self._key(key), "UploadId": upload}
        try:
            self._call(self._client.abort_multipart_upload, **call)
        except FileNotFoundError:
            return

    def open_uploads(self) -> Iterator[tuple[str, str, float]]:
        """Yield key, id and age in seconds of the uploads in parts that have not ended."""
        now_s = self.now_s()
        marks = {"NextKeyMarker": "KeyMarker", "NextUploadIdMarker": "UploadIdMarker"}
        for page in self._listed(self._client.list_multipart_uploads, marks, ""):
            for each in page.get("Uploads", ()):
                key = each["Key"].removeprefix(self._prefix)
                yield key, each["UploadId"], now_s - each["Initiated"].timestamp()

    # --- small parts

    def _key(self, key: str) -> str:
        return self._prefix + key

    def _listed(
        self, call: Callable[..., Any], marks: Mapping[str, str], prefix: str, **named: Any
    ) -> Iterator[Any]:
        """Yield the pages of a list; `marks` has arguments of the next call, by their names in an answer."""
        named |= {"Bucket": self.name, "Prefix": self._key(prefix)}
        while True:
            page = self._call(call, **named)
            yield page
            after = {argument: page[mark] for mark, argument in marks.items() if page.get(mark)}
            if not page.get("IsTruncated") or not after:
                return
            named |= after

    def _read(self, **call: Any) -> tuple[Any, bytes]:
        """Return an answer with its body; one that breaks off is asked for again."""

        def read(**call: Any) -> tuple[Any, bytes]:
            answer = self._client.get_object(**call)
            return answer, bytes(answer["Body"].read())

        return self._call(read, Bucket=self.name, **call)

    def _now_s(self, answer: Any) -> float:
        date = answer["ResponseMetadata"]["HTTPHeaders"]["date"]
        return email.utils.parsedate_to_datetime(date).timestamp()

    def _call(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return self._calls.make(partial(call, *args, **kwargs))
        except ClientError as error:
            key = kwargs.get("Key")
            if key is not None and code_of(error) in (*_MISSING, "NoSuchUpload"):
                raise FileNotFoundError(f"{self.where} has no {key}") from error
            raise as_qlm(error, self.where) from error
