"""A disk that takes no more."""

import contextlib
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """Let writes of this process to files fail with an `OSError` while inside; names can still be made."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
