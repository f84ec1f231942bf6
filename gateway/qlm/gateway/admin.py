"""/admin/v1: the cluster as operators see it. Read-only, but for drain; dead letters are in `admin_dead`."""

from collections.abc import Sequence
from typing import Final

from starlette.requests import Request as HttpRequest

from qlm.domain.fleet import InstanceStatus
from qlm.domain.group import Group
from qlm.domain.ids import InstanceId, RequestId
from qlm.domain.operations import OperationStats
from qlm.domain.request import RequestRecord, RequestState
from qlm.domain.shown import cut
from qlm.domain.view import ClusterView, QueuePlace, RequestFilter
from qlm.gateway.answers import Json, Kept, Later
from qlm.gateway.errors import ApiError, invalid, shown
from qlm.gateway.fields.forecast import Forecast
from qlm.gateway.fields.instances import Draining, Instance, Instances, Operations, Unplaced
from qlm.gateway.fields.queues import (
    ClassQueue,
    GroupFields,
    Groups,
    InstanceQueue,
    KeptPlan,
    Leader,
    Leadership,
    Queues,
)
from qlm.gateway.fields.requests import AdminRequest, Requests, Story, Waits
from qlm.gateway.gateway import Gateway
from qlm.gateway.lookup import describe

LIST_DEFAULT: Final = 100
LIST_MAX: Final = 10_000
_DIGITS_MAX: Final = 20


async def list_queues(gateway: Gateway, request: HttpRequest) -> Json[Queues]:
    """Answer GET /admin/v1/queues: class queues with their depths, and virtual queues in order."""
    return Json(await queues(gateway))


async def queues(gateway: Gateway) -> Queues:
    """Read class queues with their depths, and virtual queues in order."""
    view = await gateway.store.view()
    classes: list[ClassQueue] = [
        {
            "queue": each.cls.queue,
            "model": each.cls.model,
            "slo_class": each.cls.slo,
            "late": each.cls.late,
            "cluster": each.cls.cluster,
            "priority": each.cls.priority,
            "target_s": None if each.cls.target_ms is None else each.cls.target_ms / 1000,
            "queued": each.queued,
            "groups": len(each.groups),
            "ungrouped_arrival_s": _seconds(each.ungrouped_arrival_ns),
            "mean_prompt_tokens": each.mean_prompt_tokens,
            "mean_output_tokens": each.mean_output_tokens,
            "finished": each.finished,
        }
        for each in view.classes
    ]
    virtual: list[InstanceQueue] = [
        {"instance": each.instance, "version": each.version, "groups": [_group(view, g) for g in each.groups]}
        for each in view.queues
    ]
    load = gateway.load.load
    return {"classes": classes, "virtual_queues": virtual, "finished_per_s": load.finished_per_s}


async def list_groups(gateway: Gateway, request: HttpRequest) -> Json[Groups]:
    """Answer GET /admin/v1/groups: the request groups, and on which virtual queues they stand."""
    view = await gateway.store.view()
    return Json({"groups": [_group(view, group) for each in view.classes for group in each.groups]})


async def list_requests(gateway: Gateway, request: HttpRequest) -> Json[Requests]:
    """Answer GET /admin/v1/requests?state=&model=&limit=: requests, newest first."""
    query = request.query_params
    where = RequestFilter(
        state=_state(query.get("state")), model=query.get("model"), limit=list_limit(query.get("limit"))
    )
    records = await gateway.store.records(where)
    return Json({"requests": [_request(gateway, record) for record in records]})


async def get_story(gateway: Gateway, request: HttpRequest) -> Json[Story]:
    """Answer GET /admin/v1/requests/{id}: a request with the events of its life, and where it waits."""
    id = RequestId(request.path_params["id"])
    if (record := await gateway.store.record(id)) is None:
        raise ApiError(status=404, message=f"no request {cut(id)}", param="id", code="request_not_found")
    place = await gateway.store.queue_place(id)
    return Json({**_request(gateway, record), "waits": None if place is None else _waits(place)})


async def get_plan(gateway: Gateway, request: HttpRequest) -> Kept[KeptPlan]:
    """Answer GET /admin/v1/plan: the latest plan with its problem, as the controller kept it."""
    if (plan := await gateway.store.kept_plan()) is None:
        message = "there is no plan yet: no controller has made one for this shared state; does one run?"
        raise ApiError(status=404, message=message, code="plan_not_found")
    return Kept(plan)


async def get_forecast(gateway: Gateway, request: HttpRequest) -> Kept[Forecast]:
    """Answer GET /admin/v1/forecast: what is forecast of requests that arrive, as the controller kept it."""
    if (signal := await gateway.store.kept_signal()) is None:
        message = "there is no forecast: no controller has made one lately; does one run?"
        raise ApiError(status=404, message=message, code="forecast_not_found")
    return Kept(signal)


async def get_controller(gateway: Gateway, request: HttpRequest) -> Json[Leadership]:
    """Answer GET /admin/v1/controller: which controller plans, since when; null if none does."""
    if (led := await gateway.store.leader()) is None:
        return Json({"leader": None})
    leader: Leader = {
        "id": led.leader,
        "since_s": _seconds(led.since_ns),
        "incarnation": led.term.incarnation,
        "term": led.term.n,
    }
    return Json({"leader": leader})


async def list_instances(gateway: Gateway, request: HttpRequest) -> Json[Instances]:
    """Answer GET /admin/v1/instances: the live ones, and those that wait for a place to run."""
    view, unplaced = await gateway.store.view(), await gateway.store.unplaced()
    waiting: list[Unplaced] = [
        {"id": id, "state": "waiting for a place", "why": why} for id, why in unplaced.items()
    ]
    return Json({"instances": [_instance(each) for each in view.instances], "unplaced": waiting})


async def drain_instance(gateway: Gateway, request: HttpRequest) -> Later[Draining]:
    """Answer POST /admin/v1/instances/{id}/drain: let it give its work back and leave (202)."""
    id = InstanceId(request.path_params["id"])
    if not await gateway.store.ask_drain(id):
        raise ApiError(
            status=404, message=f"no live instance {cut(id)}", param="id", code="instance_not_found"
        )
    return Later({"instance": id, "status": "draining"})


def list_limit(text: str | None, limit_max: int = LIST_MAX) -> int:
    """Read the query parameter `limit`.

    Raises:
        ApiError: It is not a number from 1 to `limit_max`.
    """
    if text is None:
        return LIST_DEFAULT
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX and 1 <= int(text) <= limit_max):
        raise invalid("limit", f"limit is {shown(text)}; expected a number from 1 to {limit_max}")
    return int(text)


def _request(gateway: Gateway, record: RequestRecord) -> AdminRequest:
    card = record.card
    return {
        **describe(gateway, record),
        "tenant": card.tenant,
        "queue": card.cls.queue,
        "evictability": card.evictability,
        "detached": card.detached,
        "events": [
            {"at_s": event.at_ns / 1e9, "what": event.what, "why": event.why, "instance": event.instance}
            for event in record.events
        ],
    }


def _waits(place: QueuePlace) -> Waits:
    group = place.group
    return {
        "position": place.ahead + 1,
        "queued": place.queued,
        "group": None if group is None else group.id,
        "group_position": None if group is None else place.group_ahead + 1,
        "group_requests": None if group is None else group.remaining,
        "instance": place.instance,
    }


def _group(view: ClusterView, group: Group) -> GroupFields:
    return {
        "id": group.id,
        "queue": group.cls.queue,
        "model": group.cls.model,
        "slo_class": group.cls.slo,
        "late": group.cls.late,
        "seq": group.seq,
        "count": group.count,
        "pulled": group.pulled,
        "remaining": group.remaining,
        "sealed": group.sealed,
        "deadline_s": _seconds(group.deadline_ns),
        "instances": _instances_of(view, group),
    }


def _instances_of(view: ClusterView, group: Group) -> Sequence[InstanceId]:
    return [queue.instance for queue in view.queues if any(each.id == group.id for each in queue.groups)]


def _instance(status: InstanceStatus) -> Instance:
    return {
        "id": status.id,
        "session": status.holder.session,
        "accelerator": status.accelerator,
        "models": status.models,
        "active_model": status.active_model,
        "engines": dict(status.engines),
        "capacity": status.capacity,
        "running": status.running,
        "parked": status.parked,
        "kv_used_tokens": status.kv_used_tokens,
        "operations": _operations(status.operations),
        "draining": status.draining,
        "error": status.error,
    }


def _operations(stats: OperationStats) -> Operations:
    return {
        "counts": [
            {"operation": each.operation, "model": each.model, "count": each.count, "seconds": each.seconds}
            for each in stats.counts
        ],
        "model_swaps": stats.model_swaps,
        "swaps_thrashed": stats.swaps_thrashed,
        "swap_lost": [
            {"class": each.cls, "count": each.count, "seconds": each.seconds} for each in stats.swap_lost
        ],
        "ended": stats.ended,
        "observed_s": stats.observed_s,
    }


def _state(text: str | None) -> RequestState | None:
    if text is None:
        return None
    try:
        return RequestState(text)
    except ValueError as error:
        raise invalid(
            "state", f"state is {shown(text)}; expected one of {', '.join(RequestState)}"
        ) from error


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else ns / 1e9
