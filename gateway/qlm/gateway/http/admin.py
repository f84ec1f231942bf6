"""/admin/v1: the state of the cluster, for operators. Read-only except for cancel and drain."""

from typing import Final

from starlette.requests import Request as HttpRequest

from qlm.domain.fleet import InstanceStatus
from qlm.domain.ids import InstanceId, RequestId
from qlm.domain.operations import OperationStats
from qlm.domain.ports.published import PublishedKind
from qlm.domain.request import RequestRecord, RequestState
from qlm.domain.shown import cut
from qlm.domain.view import RequestFilter, RequestPosition
from qlm.gateway.api.errors import ApiError, invalid, shown
from qlm.gateway.api.fields.forecast import Forecast
from qlm.gateway.api.fields.history import StoredHistory
from qlm.gateway.api.fields.instances import (
    ConfiguredInstance,
    Draining,
    Instance,
    Instances,
    Operations,
    Unplaced,
)
from qlm.gateway.api.fields.queues import (
    Clusters,
    Groups,
    Leader,
    Leadership,
    PublishedPlan,
    Queues,
)
from qlm.gateway.api.fields.requests import (
    AdminRequest,
    QueuePosition,
    RequestDetails,
    Requests,
    RequestStatus,
)
from qlm.gateway.api.ids import request_id
from qlm.gateway.api.reasons import BY_OPERATOR
from qlm.gateway.http.requests import cancel
from qlm.gateway.http.responses import AcceptedJson, Json, StoredJson
from qlm.gateway.sessions.gateway import Gateway
from qlm.gateway.sessions.lookup import request_status
from qlm.gateway.sessions.operators import queue_listing
from qlm.gateway.sessions.operators.queue_listing import cluster_fields, group_fields, holders_of

LIST_DEFAULT: Final = 100
LIST_MAX: Final = 10_000

LOOKED_AT: Final = 1000
"""Newest requests among which late ones and those of a task or an adapter are looked for, or `limit`."""

_DIGITS_MAX: Final = 20


async def list_queues(gateway: Gateway, request: HttpRequest) -> Json[Queues]:
    """Answer GET /admin/v1/queues: class queues with their depths, and virtual queues in order."""
    return Json(await queue_listing.list_queues(gateway))


async def list_groups(gateway: Gateway, request: HttpRequest) -> Json[Groups]:
    """Answer GET /admin/v1/groups: the request groups, with the virtual queues that contain them."""
    view = await gateway.store.view()
    holders = holders_of(view)
    return Json({"groups": [group_fields(group, holders) for each in view.classes for group in each.groups]})


async def list_requests(gateway: Gateway, request: HttpRequest) -> Json[Requests]:
    """Answer GET /admin/v1/requests?state=&model=&late=&task=&limit=: requests, newest first.

    With `late` only late ones, with `task` only calls of the task of this name. Requests of a model are also
    those of its adapters.
    """
    query, limit = request.query_params, list_limit(request.query_params.get("limit"))
    late, task, model = _flag("late", query.get("late")), query.get("task"), query.get("model")
    served = next((each for each in gateway.models if model == (each.adapter or each.spec.id)), None)
    adapter = served.adapter if served else ""
    where = RequestFilter(
        state=_state(query.get("state")),
        model=served.spec.id if served else model,
        limit=max(limit, LOOKED_AT) if late or task is not None or adapter else limit,
    )
    records = [
        each
        for each in await gateway.store.records(where)
        if task in (None, each.metadata.extensions.task_id)
        and adapter in ("", each.metadata.sampling.adapter)
    ]
    found = [_request(gateway, record) for record in records]
    return Json({"requests": [each for each in found if not late or each["met"] is False][:limit]})


async def get_request_details(gateway: Gateway, request: HttpRequest) -> Json[RequestDetails]:
    """Answer GET /admin/v1/requests/{id}: a request with its event history and its queue position."""
    id = request_id(request.path_params["id"])
    if (found := await request_details(gateway, id)) is None:
        raise ApiError(
            status=404, message=f"request {cut(id)} not found", param="id", code="request_not_found"
        )
    return Json(found)


async def request_details(gateway: Gateway, id: RequestId) -> RequestDetails | None:
    """Return a request with its event history and its queue position; None if it is not known."""
    if (record := await gateway.store.record(id)) is None:
        return None
    place = await gateway.store.queue_position(id)
    return {**_request(gateway, record), "waits": None if place is None else _waits(place)}


async def cancel_any_request(gateway: Gateway, request: HttpRequest) -> Json[RequestStatus]:
    """Answer POST /admin/v1/requests/{id}/cancel: cancel, as its client can."""
    return await cancel(gateway, request, BY_OPERATOR)


async def get_plan(gateway: Gateway, request: HttpRequest) -> StoredJson[PublishedPlan]:
    """Answer GET /admin/v1/plan: the latest plan with its problem, as the controller stored it."""
    if (plan := await gateway.store.published(PublishedKind.PLAN)) is None:
        message = "there is no plan yet: no controller has made one; is a controller running?"
        raise ApiError(status=404, message=message, code="plan_not_found")
    return StoredJson(plan)


async def get_forecast(gateway: Gateway, request: HttpRequest) -> StoredJson[Forecast]:
    """Answer GET /admin/v1/forecast: the forecast for new requests, as the controller stored it."""
    if (signal := await gateway.store.published(PublishedKind.SIGNAL)) is None:
        message = "there is no forecast: no controller has made one recently; is a controller running?"
        raise ApiError(status=404, message=message, code="forecast_not_found")
    return StoredJson(signal)


async def list_clusters(gateway: Gateway, request: HttpRequest) -> Json[Clusters]:
    """Answer GET /admin/v1/clusters: the classes that this gateway divides by the length of prompts."""
    return Json({"clusters": cluster_fields(gateway.load.clusters())})


async def get_history(gateway: Gateway, request: HttpRequest) -> StoredJson[StoredHistory]:
    """Answer GET /admin/v1/history: what the controllers have learned, as one stored it."""
    if (history := await gateway.store.published(PublishedKind.HISTORY)) is None:
        message = "there is no history: controllers store what they have learned every 30 s; does one run?"
        raise ApiError(status=404, message=message, code="history_not_found")
    return StoredJson(history)


async def get_controller(gateway: Gateway, request: HttpRequest) -> Json[Leadership]:
    """Answer GET /admin/v1/controller: the controller that plans, and since when; null if none does."""
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
    """Answer GET /admin/v1/instances: instances that live, are configured, or wait for a node."""
    view, unplaced = await gateway.store.view(), await gateway.store.unplaced()
    waiting: list[Unplaced] = [
        {"id": id, "state": "waiting for a place", "why": why} for id, why in unplaced.items()
    ]
    refused = await gateway.store.refused_agents()
    return Json(
        {
            "instances": [_instance(each) for each in view.instances],
            "configured": configured_instances(gateway),
            "refused_agents": [{"id": id, "why": why} for id, why in refused.items()],
            "unplaced": waiting,
        }
    )


def configured_instances(gateway: Gateway) -> list[ConfiguredInstance]:
    """Return the instances of the configuration of this gateway."""
    return [
        {
            "id": each.id,
            "accelerator": each.accelerator,
            "models": list(each.models),
            "batching": each.batching,
        }
        for each in gateway.configured.instances
    ]


async def drain_instance(gateway: Gateway, request: HttpRequest) -> AcceptedJson[Draining]:
    """Answer POST /admin/v1/instances/{id}/drain: let an instance return its work and leave (202)."""
    id = InstanceId(request.path_params["id"])
    if not await gateway.store.ask_drain(id):
        raise ApiError(
            status=404, message=f"no live instance {cut(id)}", param="id", code="instance_not_found"
        )
    return AcceptedJson({"instance": id, "status": "draining"})


def list_limit(text: str | None, limit_max: int = LIST_MAX) -> int:
    """Return the query parameter `limit`.

    Raises:
        ApiError: It is not a number from 1 to `limit_max`.
    """
    if text is None:
        return LIST_DEFAULT
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX and 1 <= int(text) <= limit_max):
        raise invalid("limit", f"limit is {shown(text)}; expected a number from 1 to {limit_max}")
    return int(text)


def _request(gateway: Gateway, record: RequestRecord) -> AdminRequest:
    metadata = record.metadata
    return {
        **request_status(record, gateway.limits, gateway.clock.now_ns()),
        "tenant": metadata.tenant,
        "queue": metadata.cls.queue,
        "evictability": metadata.evictability,
        "detached": metadata.detached,
        "events": [
            {"at_s": event.at_ns / 1e9, "what": event.what, "why": event.why, "instance": event.instance}
            for event in record.events
        ],
    }


def _waits(place: RequestPosition) -> QueuePosition:
    group = place.group
    return {
        "position": place.predecessors + 1,
        "queued": place.queued,
        "group": None if group is None else group.id,
        "group_position": None if group is None else place.group_predecessors + 1,
        "group_requests": None if group is None else group.remaining,
        "instance": place.instance,
    }


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


def _flag(name: str, text: str | None) -> bool:
    if text not in (None, "true", "false"):
        raise invalid(name, f"{name} is {shown(text)}; expected true or false")
    return text == "true"


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else ns / 1e9
