"""Descriptors of this process: each connection takes one."""

import contextlib
import resource


def allow_descriptors(wanted: int) -> int:
    """Raise the soft limit of open files, if it is lower, to what is wanted or to the hard limit.

    Returns:
        The limit after that.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    if soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        # Systems with a further limit refuse.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
