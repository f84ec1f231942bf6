"""OpenAI's objects of files and batches."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict


class FileFields(TypedDict):
    """A file."""

    id: str  # Its id
    object: Literal["file"]  # Kind of object
    bytes: int  # Its size
    created_at: int  # Its creation, seconds since the epoch
    expires_at: int  # The time at which it is deleted, seconds since the epoch
    filename: str  # Name that its client gave it
    purpose: str  # `batch`, or `batch_output` for results
    status: Literal["processed"]  # OpenAI's; always the same


class FileList(TypedDict):
    """Files."""

    object: Literal["list"]  # Kind of object
    data: Sequence[FileFields]  # Newest first
    first_id: str | None  # Id of the first one; null without any
    last_id: str | None  # Id of the last one, for `after`
    has_more: bool  # Whether further ones follow


class DeletedFile(TypedDict):
    """A deleted file."""

    id: str  # Its id
    object: Literal["file"]  # Kind of object
    deleted: bool  # True


class BatchErrorFields(TypedDict):
    """What is wrong with the input of a batch."""

    code: str  # A word for programs
    message: str  # The problem
    line: int | None  # Number of the line, from 1; null for the whole file
    param: str | None  # The field; null without one


class BatchErrors(TypedDict):
    """What is wrong with the input of a batch."""

    object: Literal["list"]  # Kind of object
    data: Sequence[BatchErrorFields]  # At most 20


class RequestCounts(TypedDict):
    """Progress of a batch."""

    total: int  # Its lines; 0 until they are validated
    completed: int  # Lines in the output file
    failed: int  # Lines in the error file


class BatchFields(TypedDict):
    """A batch."""

    id: str  # Its id
    object: Literal["batch"]  # Kind of object
    endpoint: str  # Route of all its lines
    errors: BatchErrors | None  # What is wrong with its input; null unless it has failed
    input_file_id: str  # File with its lines
    completion_window: str  # Its window, as given
    # `validating`, `in_progress`, `finalizing`, `completed`, `failed`, `expired`, `cancelling`, `cancelled`
    status: str
    output_file_id: str | None  # File with the answers; null until it has ended, and without any
    error_file_id: str | None  # File with the errors; null until it has ended, and without any
    created_at: int  # Its creation; this and all other times in seconds since the epoch
    in_progress_at: int | None  # The time at which its lines were found valid
    expires_at: int  # End of its window
    finalizing_at: int | None  # The time at which all lines had an end
    completed_at: int | None  # The end of a completed batch; null of others
    failed_at: int | None  # The end of a failed batch; null of others
    expired_at: int | None  # The end of an expired batch; null of others
    cancelling_at: int | None  # The time at which its client asked to cancel it
    cancelled_at: int | None  # The end of a cancelled batch; null of others
    paused_at: int | None  # The time since which it is paused; null if it is not, and once it has ended
    request_counts: RequestCounts  # Its progress
    metadata: Mapping[str, Any]  # Its client's notes


class BatchList(TypedDict):
    """Batches."""

    object: Literal["list"]  # Kind of object
    data: Sequence[BatchFields]  # Newest first
    first_id: str | None  # Id of the first one; null without any
    last_id: str | None  # Id of the last one, for `after`
    has_more: bool  # Whether further ones follow


class AdminBatch(BatchFields):
    """A batch, for operators."""

    tenant: str  # Its tenant


class AdminBatchList(TypedDict):
    """Batches of all tenants."""

    batches: Sequence[AdminBatch]  # Newest first
