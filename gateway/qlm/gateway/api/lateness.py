"""Lateness of an answer as clients read it: headers, trailers, and a field of the last events of a stream.

A stream has the field `qlm` in its last event and in its usage, which clients of OpenAI's API ignore. It has
whole numbers and truth values only, since some clients add up what they find in a usage.
"""

import math
from collections.abc import Mapping
from typing import Final

from qlm.domain.attainment import Attainment
from qlm.gateway.api.fields.openai import Lateness

MET: Final = "x-qlm-met"
LATE_MS: Final = "x-qlm-late-ms"


def late_ms(attainment: Attainment) -> int | None:
    """Return the lateness in whole milliseconds, rounded up: what is late is late by at least one."""
    return None if attainment.late_by_s is None else math.ceil(attainment.late_by_s * 1000)


def lateness_headers(attainment: Attainment) -> Mapping[str, str]:
    """Return the headers of an answer; none if its objective is undecided, or if it has none."""
    if attainment.met is None:
        return {}
    met = {MET: "true" if attainment.met else "false"}
    late = late_ms(attainment)
    return met if late is None else met | {LATE_MS: str(late)}


def lateness(attainment: Attainment) -> Lateness | None:
    """Return the field `qlm` of the last events of a stream; None as for the headers."""
    if attainment.met is None:
        return None
    found: Lateness = {"met": attainment.met}
    if (late := late_ms(attainment)) is not None:
        found["late_ms"] = late
    return found
