"""The plan that a running QLM works by, as its gateway tells it."""

from typing import Any, Final

from qlm.cli import render
from qlm.cli.admin_client import AdminClient, AdminError, segment
from qlm.domain.errors import InvalidValueError
from qlm.planner.kept_plan import KeptPlan, kept_plan_from_plain

OLD_S: Final = 30.0
"""A controller that runs keeps its plan three times in this."""


def fetch_plan(client: AdminClient) -> KeptPlan:
    """Get the latest plan.

    Raises:
        AdminError: The gateway cannot be reached, has no plan yet, or tells it in a form not known here.
    """
    try:
        return kept_plan_from_plain(client.get("/admin/v1/plan"))
    except InvalidValueError as error:
        raise AdminError(
            f"the plan of the gateway cannot be read: {error}; is it of another version?"
        ) from error


def fetch_plan_if_any(client: AdminClient) -> KeptPlan | None:
    """Get the latest plan; None if there is none yet.

    Raises:
        AdminError: The gateway cannot be reached, or tells it in a form not known here.
    """
    try:
        return fetch_plan(client)
    except AdminError as error:
        if error.code != "plan_not_found":
            raise
        return None


def fetch_request(client: AdminClient, id: str) -> dict[str, Any] | None:
    """Get what the gateway knows of a request; None if it knows none of this id.

    Raises:
        AdminError: The gateway cannot be reached.
    """
    try:
        asked: dict[str, Any] = client.get(f"/admin/v1/requests/{segment(id)}")
    except AdminError as error:
        if error.code not in ("request_not_found", "not_found"):
            raise
        return None
    return asked


def fetch_groups(client: AdminClient, queue: str) -> list[dict[str, Any]]:
    """Get the groups of a class, in order of arrival."""
    groups = client.get("/admin/v1/groups")["groups"]
    return sorted((each for each in groups if each["queue"] == queue), key=lambda each: int(each["seq"]))


def old(kept: KeptPlan, now_s: float) -> str:
    """Say who made a plan, and how long ago.

    Args:
        kept: The plan.
        now_s: The present, seconds since the epoch.
    """
    method = f" by {kept.plan.method}" if kept.plan.method else ""
    return f"plan{method} of {render.span(_age_s(kept, now_s))} ago"


def age(kept: KeptPlan, now_s: float) -> str:
    """Say the same, and what that means for what is told."""
    line = f"{old(kept, now_s)}; its times count from then"
    if _age_s(kept, now_s) > OLD_S:
        line += "; no newer one has come: does a controller run?"
    return line


def _age_s(kept: KeptPlan, now_s: float) -> float:
    return max(0.0, now_s - kept.at_ms / 1000)
