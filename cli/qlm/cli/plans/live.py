"""Fetches the plan of a running QLM, with its requests and groups, from a gateway."""

from typing import Any, Final

from qlm.cli.inspect import render
from qlm.cli.inspect.admin_client import AdminClient, AdminError, segment
from qlm.domain.errors import InvalidValueError
from qlm.planner.method_names import KEPT
from qlm.planner.published_plan import PublishedPlan, published_plan_from_plain

LATE_MAX: Final = 1000
"""Newest requests of each state among which late ones are counted."""

OLD_S: Final = 30.0
"""A plan older than this is reported: a running controller stores three plans in this time."""


def fetch_plan(client: AdminClient) -> PublishedPlan:
    """Get the latest plan.

    Raises:
        AdminError: The gateway cannot be reached, has no plan yet, or returns it in an unknown form.
    """
    try:
        return published_plan_from_plain(client.get("/admin/v1/plan"))
    except InvalidValueError as error:
        raise AdminError(
            f"the plan of the gateway cannot be read: {error}; is it of another version?"
        ) from error


def fetch_plan_if_any(client: AdminClient) -> PublishedPlan | None:
    """Get the latest plan; None if there is none yet.

    Raises:
        AdminError: The gateway cannot be reached, or returns it in an unknown form.
    """
    try:
        return fetch_plan(client)
    except AdminError as error:
        if error.code != "plan_not_found":
            raise
        return None


def fetch_request(client: AdminClient, id: str) -> dict[str, Any] | None:
    """Get the state of a request; None if the gateway does not know the id.

    Raises:
        AdminError: The gateway cannot be reached.
    """
    try:
        request: dict[str, Any] = client.get(f"/admin/v1/requests/{segment(id)}")
    except AdminError as error:
        if error.code not in ("request_not_found", "not_found"):
            raise
        return None
    return request


def fetch_groups(client: AdminClient, queue: str) -> list[dict[str, Any]]:
    """Get the groups of a class, in order of arrival."""
    groups = client.get("/admin/v1/groups")["groups"]
    return sorted((each for each in groups if each["queue"] == queue), key=lambda each: int(each["seq"]))


def fetch_clusters(client: AdminClient) -> list[dict[str, Any]]:
    """Get the classes that are divided by the length of prompts; none from a gateway of an earlier version.

    Raises:
        AdminError: The gateway cannot be reached.
    """
    try:
        clusters: list[dict[str, Any]] = client.get("/admin/v1/clusters")["clusters"]
    except AdminError as error:
        if error.code != "not_found":
            raise
        return []
    return clusters


def late_already(client: AdminClient) -> str | None:
    """Say how many requests no plan has a deadline for any more, since they are late; None if there are none.

    Raises:
        AdminError: The gateway cannot be reached.
    """
    counts = {}
    for state, word in (("queued", "wait"), ("running", "run"), ("parked", "are preempted")):
        listed = client.get("/admin/v1/requests", late="true", state=state, limit=LATE_MAX)["requests"]
        counts[word] = len(listed)
    classes = client.get("/admin/v1/queues")["classes"]
    # Of a long queue the newest are listed, and late are the oldest: these are in late classes.
    counts["wait"] = max(counts["wait"], sum(each["queued"] for each in classes if each["late"]))
    said = [f"{number} {what}" for what, number in counts.items() if number]
    return (
        f"late, and so without a deadline in the plan: {', '.join(said)} (`qlm requests --late`)"
        if said
        else None
    )


def age_note(kept: PublishedPlan, now_s: float) -> str:
    """Format the method and age of a plan; `now_s` is in seconds since the epoch."""
    past = f"{render.span(_age_s(kept, now_s))} ago"
    if kept.plan.method == KEPT:
        return f"earlier plan, kept {past}"
    method = f" by {kept.plan.method}" if kept.plan.method else ""
    return f"plan{method} of {past}"


def age(kept: PublishedPlan, now_s: float) -> str:
    """Format the method and age of a plan, with a hint if it is old."""
    line = f"{age_note(kept, now_s)}; its times count from then"
    if _age_s(kept, now_s) > OLD_S:
        line += "; no newer plan has arrived: is a controller running?"
    return line


def _age_s(kept: PublishedPlan, now_s: float) -> float:
    return max(0.0, now_s - kept.at_ms / 1000)
