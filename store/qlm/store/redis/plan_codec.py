"""Plans in Redis: changes as arguments of a script, and virtual queues as its replies."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from qlm.domain.group import Group
from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.domain.plan_change import (
    CloseGroup,
    CreateGroup,
    PlanChange,
    ResizeGroup,
    SetForecasts,
    SetHomes,
    SetQueue,
)
from qlm.domain.virtual_queue import ClassForecast, VirtualQueue
from qlm.store.redis.codec import class_key, class_of


def changes_argument(changes: Sequence[PlanChange]) -> bytes:
    """Encode plan changes as JSON."""
    return orjson.dumps([_change_to_plain(change) for change in changes])


def _change_to_plain(change: PlanChange) -> list[Any]:
    match change:
        case CreateGroup():
            return ["create", change.id, class_key(change.cls), change.count]
        case ResizeGroup():
            return ["resize", change.id, change.count, int(change.sealed)]
        case CloseGroup():
            return ["close", change.id]
        case SetQueue():
            return ["queue", change.instance, change.groups]
        case SetForecasts():
            text = orjson.dumps([_forecast_to_plain(each) for each in change.forecasts]).decode()
            return ["forecasts", change.instance, text]
        case SetHomes():
            return ["homes", change.instance, orjson.dumps(change.models).decode()]


def _forecast_to_plain(forecast: ClassForecast) -> list[Any]:
    return [class_key(forecast.cls), forecast.service_s, forecast.answer_s, forecast.rate_rps]


def read_queue(reply: list[Any], groups: Mapping[GroupId, Group]) -> VirtualQueue:
    """Decode a virtual queue; `groups` has those of all queues, others are lost."""
    instance, version, ids, forecasts, homes = reply
    return VirtualQueue(
        instance=InstanceId(instance.decode()),
        version=version,
        groups=tuple(groups[id] for each in ids if (id := GroupId(each.decode())) in groups),
        forecasts=read_forecasts(forecasts),
        homes=read_homes(homes),
    )


def read_homes(text: bytes) -> tuple[ModelId, ...]:
    """Decode the home models of an instance; empty if none were written."""
    return tuple(ModelId(each) for each in orjson.loads(text)) if text else ()


def read_forecasts(text: bytes) -> tuple[ClassForecast, ...]:
    """Decode the forecasts of an instance; empty if none were written."""
    if not text:
        return ()
    return tuple(
        ClassForecast(cls=class_of(key.encode()), service_s=service_s, answer_s=answer_s, rate_rps=rate_rps)
        for key, service_s, answer_s, rate_rps in orjson.loads(text)
    )
