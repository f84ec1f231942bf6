"""The events of the live page but for the plan, from a look at the cluster."""

from collections.abc import Iterable, Mapping, Sequence

from qlm.domain.fleet import InstanceStatus
from qlm.domain.group import RequestClass
from qlm.domain.ids import GroupId
from qlm.domain.view import ClusterView
from qlm.gateway.api.fields.live import LiveInstance, LiveInstances, LiveQueues, Progress
from qlm.gateway.api.fields.queues import ClassAttainment
from qlm.gateway.core.configured import ConfiguredInstance
from qlm.gateway.sessions.operators.queue_listing import class_queues
from qlm.planner.problem import PlannedGroup


def classes_of(view: ClusterView | None) -> Mapping[GroupId, RequestClass]:
    """Return the class of each group."""
    classes = () if view is None else view.classes
    return {group.id: each.cls for each in classes for group in each.groups}


def progress(view: ClusterView, planned: Iterable[PlannedGroup]) -> Progress:
    """Compare the groups of a plan with what waits."""
    waiting = {group.id: group.remaining for each in view.classes for group in each.groups}
    expected = {group.id: group.requests for group in planned}
    unplanned = {id: number for id, number in waiting.items() if number and id not in expected}
    queued = sum(each.queued for each in view.classes)
    return {
        "remaining": {
            id: waiting.get(id, 0) for id, number in expected.items() if waiting.get(id, 0) != number
        },
        "unplanned_groups": len(unplanned),
        "unplanned_requests": max(0, queued - sum(waiting.get(id, 0) for id in expected)),
    }


def live_queues(
    view: ClusterView, attainment: Sequence[ClassAttainment], finished_per_s: float | None
) -> LiveQueues:
    """Return what waits by class, and how many of the latest requests were in time."""
    return {
        "classes": class_queues(view),
        "attainment": attainment,
        "finished_per_s": None if finished_per_s is None else round(finished_per_s, 2),
    }


def live_instances(view: ClusterView, configured: Iterable[ConfiguredInstance]) -> LiveInstances:
    """Return the instances that live, and the configured ones that do not."""
    live = [_live(each) for each in view.instances]
    known = {each["id"] for each in live}
    away = [_away(each) for each in configured if each.id not in known]
    return {"instances": sorted([*live, *away], key=lambda each: each["id"])}


def _live(status: InstanceStatus) -> LiveInstance:
    return {
        "id": status.id,
        "live": True,
        "accelerator": status.accelerator,
        "active_model": status.active_model,
        "engines": dict(status.engines),
        "running": status.running,
        "parked": status.parked,
        "kv_used_tokens": status.kv_used_tokens,
        "kv_tokens": None if status.capacity is None else status.capacity.kv_tokens,
        "swaps": status.operations.model_swaps,
        "swaps_thrashed": status.operations.swaps_thrashed,
        "draining": status.draining,
        "error": status.error,
    }


def _away(configured: ConfiguredInstance) -> LiveInstance:
    return {
        "id": configured.id,
        "live": False,
        "accelerator": configured.accelerator,
        "active_model": None,
        "engines": {},
        "running": 0,
        "parked": 0,
        "kv_used_tokens": 0,
        "kv_tokens": None,
        "swaps": 0,
        "swaps_thrashed": 0,
        "draining": False,
        "error": "",
    }
