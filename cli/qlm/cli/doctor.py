"""What `qlm doctor` looks at: the gateway, what it needs, who plans, the instances, this machine's disk."""

import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from qlm.cli.admin_client import AdminClient, AdminError
from qlm.cli.render import ago

DISK_FREE_MIN_BYTES: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was checked.

    Attributes:
        check: What.
        ok: Whether it is as it should be.
        detail: What was found.
        remedy: What to do, if it is not.
    """

    check: str
    ok: bool
    detail: str
    remedy: str = ""


def examine(client: AdminClient) -> list[Finding]:
    """Check everything that can be checked from here; what depends on a dead gateway is left out."""
    findings = [_disk()]
    try:
        ready = client.get("/readyz")
        findings.append(Finding("gateway", True, f"ready ({', '.join(sorted(ready))})"))
    except AdminError as error:
        findings.append(Finding("gateway", False, str(error), "start it, or look at its log"))
        return findings
    findings.append(_controller(client.get("/admin/v1/controller")["leader"]))
    instances = client.get("/admin/v1/instances")["instances"]
    findings.append(_instances(instances))
    findings += [_instance(each) for each in instances if each["error"]]
    findings += _waiting(client.get("/admin/v1/queues")["classes"], instances)
    findings += _dead_letters(client.get("/admin/v1/dead", limit=1)["total"])
    return findings


def _disk() -> Finding:
    free = shutil.disk_usage(Path.cwd()).free
    ok = free >= DISK_FREE_MIN_BYTES
    remedy = "" if ok else "make room: the embedded queue refuses requests when the disk is full"
    return Finding("disk", ok, f"{free / 1e9:.0f} GB free in {Path.cwd()}", remedy)


def _controller(leader: dict[str, Any] | None) -> Finding:
    if leader is None:
        remedy = "start `qlm controller`, or look at its log; one that died is replaced within seconds"
        return Finding("controller", False, "none leads: nothing is planned", remedy)
    return Finding("controller", True, f"{leader['id']} leads, it took over {ago(leader['since_s'])}")


def _instances(instances: list[dict[str, Any]]) -> Finding:
    awake = [each["id"] for each in instances if each["active_model"]]
    ok = bool(awake) and len(awake) == len(instances)
    remedy = "" if ok else "wait for engines that are starting; else see the log of the agent"
    return Finding("instances", ok, f"{len(instances)} live, {len(awake)} with a model awake", remedy)


def _instance(each: dict[str, Any]) -> Finding:
    return Finding(f"instance {each['id']}", False, each["error"], "see the log of its engine")


def _waiting(classes: list[dict[str, Any]], instances: list[dict[str, Any]]) -> list[Finding]:
    """Find models that requests wait for and nobody serves."""
    served = {model for each in instances for model in each["models"]}
    lost: Counter[str] = Counter()
    for each in classes:
        if each["queued"] and each["model"] not in served:
            lost[each["model"]] += each["queued"]
    return [
        Finding(
            f"model {model}",
            False,
            f"{queued} requests wait, no live instance serves it",
            "start one that does",
        )
        for model, queued in lost.items()
    ]


def _dead_letters(total: int) -> list[Finding]:
    if not total:
        return []
    remedy = "`qlm requests --dead` says why; `qlm requests retry` puts them back"
    return [Finding("dead letters", False, f"nobody could serve {total} messages", remedy)]
