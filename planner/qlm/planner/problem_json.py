"""Problems as JSON-like data, in their published form; unknown fields are refused."""

import math
from collections.abc import Mapping
from typing import Any

from qlm.domain.errors import InvalidValueError
from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.planner.problem import (
    VERSION,
    GroupTime,
    Instance,
    Kind,
    ModelCost,
    PlannedGroup,
    Problem,
)
from qlm.rct_estimator.normal import Normal


def problem_to_plain(problem: Problem) -> dict[str, Any]:
    """Write a problem as dicts, lists, numbers and strings."""
    return {
        "version": VERSION,
        "now_s": problem.now_s,
        "miss_weight_s": problem.miss_weight_s,
        "move_s": problem.move_s,
        "kinds": {name: _kind_to_plain(kind) for name, kind in problem.kinds.items()},
        "instances": [_instance_to_plain(instance) for instance in problem.instances],
        "groups": [_group_to_plain(group) for group in problem.groups],
    }


def problem_from_plain(plain: Mapping[str, Any]) -> Problem:
    """Read a problem.

    Raises:
        InvalidValueError: A field is missing, unknown, of the wrong type or out of range; it is named.
    """
    reader = _Reader("problem", plain)
    if reader.take("version") != VERSION:
        raise InvalidValueError("version", plain.get("version"), str(VERSION))
    problem = Problem(
        now_s=reader.number("now_s"),
        miss_weight_s=reader.number("miss_weight_s", 600.0, least=0.0),
        move_s=reader.number("move_s", 0.0, least=0.0),
        kinds={name: _kind(name, kind) for name, kind in reader.mapping("kinds").items()},
        instances=tuple(_instance(i, item) for i, item in enumerate(reader.sequence("instances"))),
        groups=tuple(_group(i, item) for i, item in enumerate(reader.sequence("groups"))),
    )
    reader.done()
    return problem


def _kind(name: str, plain: Any) -> Kind:
    reader = _Reader(f"kinds.{name}", plain)
    models: dict[ModelId, ModelCost] = {}
    for model, costs in reader.mapping("models").items():
        cost = _Reader(f"kinds.{name}.models.{model}", costs)
        models[ModelId(model)] = ModelCost(
            weights_bytes=round(cost.number("weights_bytes", least=0.0)),
            swap_warm_s=cost.number("swap_warm_s", least=0.0),
            swap_cold_s=cost.number("swap_cold_s", least=0.0),
            unload_s=cost.number("unload_s", 0.0, least=0.0),
        )
        cost.done()
    kind = Kind(host_memory_bytes=round(reader.number("host_memory_bytes", least=0.0)), models=models)
    reader.done()
    return kind


def _instance(index: int, plain: Any) -> Instance:
    reader = _Reader(f"instances[{index}]", plain)
    loaded = reader.take("loaded_model", None)
    instance = Instance(
        id=InstanceId(reader.text("id")),
        kind=reader.text("kind"),
        loaded_model=loaded,
        warm_models=tuple(reader.sequence("warm_models", ())),
        busy=_normal(reader, "busy_s"),
        queue=tuple(reader.sequence("queue", ())),
    )
    reader.done()
    return instance


def _group(index: int, plain: Any) -> PlannedGroup:
    reader = _Reader(f"groups[{index}]", plain)
    times = {}
    for kind, time in reader.mapping("time").items():
        one = _Reader(f"groups[{index}].time.{kind}", time)
        times[kind] = GroupTime(drain=_normal(one, "drain_s"), tail=_normal(one, "tail_s"))
        one.done()
    deadline = reader.take("deadline_s", None)
    group = PlannedGroup(
        id=GroupId(reader.text("id")),
        model=ModelId(reader.text("model")),
        requests=round(reader.number("requests", least=1.0)),
        deadline_s=None if deadline is None else _finite(f"groups[{index}].deadline_s", deadline),
        priority=round(reader.number("priority", 0.0)),
        time=times,
    )
    reader.done()
    return group


def _normal(reader: "_Reader", key: str) -> Normal:
    inner = _Reader(f"{reader.where}.{key}", reader.take(key, {"mean": 0.0, "var": 0.0}))
    normal = Normal(inner.number("mean", least=0.0), inner.number("var", 0.0, least=0.0))
    inner.done()
    return normal


def _kind_to_plain(kind: Kind) -> dict[str, Any]:
    models = {
        model: {
            "weights_bytes": cost.weights_bytes,
            "swap_warm_s": cost.swap_warm_s,
            "swap_cold_s": cost.swap_cold_s,
            "unload_s": cost.unload_s,
        }
        for model, cost in kind.models.items()
    }
    return {"host_memory_bytes": kind.host_memory_bytes, "models": models}


def _instance_to_plain(instance: Instance) -> dict[str, Any]:
    return {
        "id": instance.id,
        "kind": instance.kind,
        "loaded_model": instance.loaded_model,
        "warm_models": list(instance.warm_models),
        "busy_s": _normal_to_plain(instance.busy),
        "queue": list(instance.queue),
    }


def _group_to_plain(group: PlannedGroup) -> dict[str, Any]:
    times = {
        kind: {"drain_s": _normal_to_plain(time.drain), "tail_s": _normal_to_plain(time.tail)}
        for kind, time in group.time.items()
    }
    return {
        "id": group.id,
        "model": group.model,
        "requests": group.requests,
        "deadline_s": group.deadline_s,
        "priority": group.priority,
        "time": times,
    }


def _normal_to_plain(normal: Normal) -> dict[str, float]:
    return {"mean": normal.mean, "var": normal.var}


def _finite(where: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidValueError(where, value, "a finite number")
    return float(value)


_REQUIRED: Any = object()


class _Reader:
    """Takes fields out of a mapping, naming what is wrong; `done` refuses what was not taken."""

    def __init__(self, where: str, plain: Any) -> None:
        if not isinstance(plain, Mapping):
            raise InvalidValueError(where, plain, "an object")
        self.where = where
        self._left = dict(plain)

    def take(self, key: str, default: Any = _REQUIRED) -> Any:
        value = self._left.pop(key, default)
        if value is _REQUIRED:
            raise InvalidValueError(f"{self.where}.{key}", None, "a value; the field is missing")
        return value

    def number(self, key: str, default: Any = _REQUIRED, *, least: float = -math.inf) -> float:
        value = _finite(f"{self.where}.{key}", self.take(key, default))
        if value < least:
            raise InvalidValueError(f"{self.where}.{key}", value, f"at least {least:g}")
        return value

    def text(self, key: str) -> str:
        value = self.take(key)
        if not isinstance(value, str) or not value:
            raise InvalidValueError(f"{self.where}.{key}", value, "a non-empty string")
        return value

    def mapping(self, key: str) -> Mapping[str, Any]:
        value = self.take(key)
        if not isinstance(value, Mapping):
            raise InvalidValueError(f"{self.where}.{key}", value, "an object")
        return value

    def sequence(self, key: str, default: Any = _REQUIRED) -> Any:
        value = self.take(key, default)
        if not isinstance(value, list | tuple):
            raise InvalidValueError(f"{self.where}.{key}", value, "a list")
        return value

    def done(self) -> None:
        if self._left:
            raise InvalidValueError(self.where, sorted(self._left), "no field of these names")
