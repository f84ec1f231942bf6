"""A disk that takes no more."""

import contextlib
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def full_disk(room_bytes: int = 0) -> Iterator[None]:
    """Let writes of this process to files fail with an `OSError` while inside; names can still be made.

    Args:
        room_bytes: Size that a file may still reach; a write beyond it is done in part, the next one fails.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
