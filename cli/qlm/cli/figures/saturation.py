"""Rate that a batch policy serves while its batch is full."""

import numpy as np

from qlm.agents.batching.view import Ints
from qlm.domain.errors import InvalidValueError


def served_when_full(first_token_ns: Ints, ended_ns: Ints) -> float:
    """Return the ends per second from the first third of them to the last first token.

    Before, the batch fills with new requests, and later it runs empty.

    Args:
        first_token_ns: When each request had its first token; all were there at the start.
        ended_ns: When each ended.

    Raises:
        InvalidValueError: They are too few to fill the batch.
    """
    ends_ns, last_ns = np.sort(ended_ns), int(first_token_ns.max())
    third = len(ends_ns) // 3
    within = int(np.searchsorted(ends_ns, last_ns)) - third
    if within < 1:
        raise InvalidValueError("requests", len(ends_ns), "enough to fill the batch for a while")
    return within / (last_ns - int(ends_ns[third])) * 1e9
