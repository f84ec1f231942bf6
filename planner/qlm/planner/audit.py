"""Audit of a plan: expected misses, lower bound, and the instances that would repair the misses.

An audit of a long queue takes seconds of a core, so a controller runs it in a process of its own:
`python -m qlm.planner.audit` reads a published plan (`published_plan`) as JSON and writes the audit as JSON.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from qlm.domain.errors import InvalidValueError, QlmError
from qlm.planner.methods import missing_instances, with_bound
from qlm.planner.problem import ScaleUp
from qlm.planner.published_plan import PLAN, PublishedPlan
from qlm.planner.verify.referee import verify

NICENESS: Final = 10
"""Process priority: the audit yields to serving on the same machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """Result of an audit.

    Attributes:
        late_requests: Expected number of requests that miss their deadline.
        lower_bound_s: Lower bound on the penalty of every plan of the same problem.
        scale_up: The fewest instances whose addition would repair the misses, beside those that still load;
            empty if none would.
    """

    late_requests: float
    penalty_s: float
    lower_bound_s: float
    scale_up: tuple[ScaleUp, ...] = ()

    @property
    def gap(self) -> float:
        """Share of the penalty above the lower bound, 0 to 1."""
        return max(0.0, 1.0 - self.lower_bound_s / self.penalty_s) if self.penalty_s > 0 else 0.0


def audit(published: PublishedPlan) -> Audit:
    """Audit a plan.

    Raises:
        QlmError: It needs a package that is not installed.
    """
    problem, plan = published.problem, published.plan
    report = verify(problem, plan)
    return Audit(
        late_requests=report.late_requests,
        penalty_s=report.penalty_s,
        lower_bound_s=with_bound(problem, plan).lower_bound_s or 0.0,
        scale_up=missing_instances(problem, plan),
    )


def audit_to_plain(result: Audit) -> dict[str, Any]:
    """Write it as dicts, lists, numbers and strings."""
    return {
        "late_requests": result.late_requests,
        "penalty_s": result.penalty_s,
        "lower_bound_s": result.lower_bound_s,
        "scale_up": {each.kind: each.count for each in result.scale_up},
    }


def audit_from_plain(plain: Mapping[str, Any]) -> Audit:
    """Read what `audit_to_plain` wrote.

    Raises:
        InvalidValueError: A field is missing or of the wrong type; it is named.
    """
    try:
        counts: Mapping[str, int] = plain["scale_up"]
        return Audit(
            late_requests=float(plain["late_requests"]),
            penalty_s=float(plain["penalty_s"]),
            lower_bound_s=float(plain["lower_bound_s"]),
            scale_up=tuple(ScaleUp(kind=str(kind), count=int(count)) for kind, count in counts.items()),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidValueError("audit", dict(plain), f"what {__name__} writes ({error!r})") from error


def main() -> None:
    """Audit the plan on standard input."""
    os.nice(NICENESS)
    published = PLAN.decode(sys.stdin.buffer.read())
    sys.stdout.buffer.write(orjson.dumps(audit_to_plain(audit(published))))


if __name__ == "__main__":
    try:
        main()
    except QlmError as error:
        sys.exit(str(error))
