"""Errors of the file system in one line."""

from qlm.domain.shown import cut


def one_line(error: OSError) -> str:
    """Return what is known of an error."""
    known = [cut(str(each)) for each in (error.filename, error.strerror) if each is not None]
    return f"qlm: {': '.join(known) or str(error) or type(error).__name__}"
