"""Problems as JSON-like data, in their published format; unknown fields are refused."""

from collections.abc import Mapping, Sequence
from typing import Any

from qlm.domain.errors import InvalidValueError
from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.planner.limits import (
    BYTES_MAX,
    CLOCK_MAX_S,
    DURATION_MAX_S,
    GROUPS_MAX,
    INSTANCES_MAX,
    KINDS_MAX,
    MODELS_MAX,
    PRIORITY_MAX,
    REQUESTS_MAX,
    REQUESTS_PER_GROUP_MAX,
    TOKENS_MAX,
)
from qlm.planner.plain_reader import Reader, count_at_most, name
from qlm.planner.problem import (
    MISS_WEIGHT_S,
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
        **({"promise_s": problem.promise_s} if problem.promise_s else {}),
        "kinds": {name: _kind_to_plain(kind) for name, kind in problem.kinds.items()},
        "instances": [_instance_to_plain(instance) for instance in problem.instances],
        "groups": _groups_to_plain(problem.groups),
    }


def problem_from_plain(plain: Mapping[str, Any]) -> Problem:
    """Read a problem.

    The fleet and the groups may be empty. Loaded and warm models may be unknown to the instance's kind
    (unloading them takes no time), and queues may name groups that no longer wait.

    Raises:
        InvalidValueError: A field is missing, unknown, of the wrong type or out of range, an id is there
            twice, or there is more of something than `qlm.planner.limits` allows; it is named.
    """
    reader = Reader("problem", plain)
    reader.version(VERSION)
    kinds = reader.mapping("kinds", KINDS_MAX)
    instances = reader.sequence("instances", INSTANCES_MAX)
    groups = reader.sequence("groups", GROUPS_MAX)
    problem = Problem(
        now_s=reader.number("now_s", least=-CLOCK_MAX_S, most=CLOCK_MAX_S),
        miss_weight_s=_seconds(reader, "miss_weight_s", MISS_WEIGHT_S),
        move_s=_seconds(reader, "move_s", 0.0),
        promise_s=_seconds(reader, "promise_s", 0.0),
        kinds={kind: _kind(kind, each) for kind, each in kinds.items()},
        instances=tuple(_instance(at, each) for at, each in enumerate(instances)),
        groups=tuple(_group(at, each, kinds) for at, each in enumerate(groups)),
    )
    reader.done()
    _check_sums(problem)
    return problem


def _check_sums(problem: Problem) -> None:
    count_at_most("requests in all groups", sum(group.requests for group in problem.groups), REQUESTS_MAX)
    models = {group.model for group in problem.groups}.union(*(k.models for k in problem.kinds.values()))
    models.update(model for each in problem.instances for model in each.warm_models)
    count_at_most("models", len(models), MODELS_MAX)


def _kind(kind: str, plain: Any) -> Kind:
    reader = Reader(f"kinds.{kind}", plain)
    costs = reader.mapping("models", MODELS_MAX)
    read = Kind(
        host_memory_bytes=reader.integer("host_memory_bytes", least=0, most=BYTES_MAX),
        models={ModelId(model): _cost(f"kinds.{kind}.models.{model}", cost) for model, cost in costs.items()},
    )
    reader.done()
    return read


def _cost(where: str, plain: Any) -> ModelCost:
    reader = Reader(where, plain)
    cost = ModelCost(
        weights_bytes=reader.integer("weights_bytes", least=0, most=BYTES_MAX),
        swap_warm_s=_seconds(reader, "swap_warm_s"),
        swap_cold_s=_seconds(reader, "swap_cold_s"),
        unload_s=_seconds(reader, "unload_s", 0.0),
        swap_reload_s=reader.number_or_none("swap_reload_s", least=0.0, most=DURATION_MAX_S),
        process_bytes=reader.integer("process_bytes", 0, least=0, most=BYTES_MAX),
        kv_tokens=reader.integer("kv_tokens", 0, least=0, most=TOKENS_MAX),
    )
    reader.done()
    return cost


def _instance(index: int, plain: Any) -> Instance:
    reader = Reader(f"instances[{index}]", plain)
    loaded = reader.take("loaded_model", None)
    instance = Instance(
        id=InstanceId(reader.text("id")),
        kind=reader.text("kind"),
        loaded_model=None if loaded is None else ModelId(name(f"instances[{index}].loaded_model", loaded)),
        warm_models=tuple(map(ModelId, reader.names("warm_models", MODELS_MAX, ()))),
        busy=_normal(reader, "busy_s", {"mean": 0.0, "var": 0.0}),
        queue=tuple(map(GroupId, reader.names("queue", GROUPS_MAX, ()))),
        unloaded_models=tuple(map(ModelId, reader.names("unloaded_models", MODELS_MAX, ()))),
        leave_s=_seconds(reader, "leave_s", 0.0),
    )
    reader.done()
    return instance


def _group(index: int, plain: Any, kinds: Mapping[str, Any]) -> PlannedGroup:
    where = f"groups[{index}]"
    reader = Reader(where, plain)
    times = reader.mapping("time", KINDS_MAX)
    group = PlannedGroup(
        id=GroupId(reader.text("id")),
        model=ModelId(reader.text("model")),
        requests=reader.integer("requests", least=1, most=REQUESTS_PER_GROUP_MAX),
        deadline_s=reader.number_or_none("deadline_s", least=-CLOCK_MAX_S, most=CLOCK_MAX_S),
        priority=reader.integer("priority", 0, least=-PRIORITY_MAX, most=PRIORITY_MAX),
        time={kind: _time(f"{where}.time", kind, each, kinds) for kind, each in times.items()},
        cls=reader.text("class") if reader.has("class") else None,
        p_met=reader.number_or_none("p_met", least=0.0, most=1.0),
        request_tokens=reader.number("request_tokens", 0.0, least=0.0, most=TOKENS_MAX),
    )
    reader.done()
    return group


def _time(where: str, kind: str, plain: Any, kinds: Mapping[str, Any]) -> GroupTime:
    if kind not in kinds:
        raise InvalidValueError(where, kind, "keys of kinds only")
    reader = Reader(f"{where}.{kind}", plain)
    service, tail = (Reader(f"{where}.{kind}.{key}", reader.take(key)) for key in ("drain_s", "tail_s"))
    time = GroupTime(
        service=_moments(service),
        tail=_moments(tail),
        class_sd_s=_seconds(service, "class_sd", 0.0),
        speed_sd_s=_seconds(service, "speed_sd", 0.0),
        tail_speed_sd_s=_seconds(tail, "speed_sd", 0.0),
    )
    for each in (service, tail, reader):
        each.done()
    return time


def _normal(reader: Reader, key: str, *default: Any) -> Normal:
    inner = Reader(f"{reader.where}.{key}", reader.take(key, *default))
    normal = _moments(inner)
    inner.done()
    return normal


def _moments(reader: Reader) -> Normal:
    return Normal(_seconds(reader, "mean"), reader.number("var", 0.0, least=0.0, most=DURATION_MAX_S**2))


def _seconds(reader: Reader, key: str, *default: float) -> float:
    return reader.number(key, *default, least=0.0, most=DURATION_MAX_S)


def _kind_to_plain(kind: Kind) -> dict[str, Any]:
    models = {
        model: {
            "weights_bytes": cost.weights_bytes,
            "swap_warm_s": cost.swap_warm_s,
            "swap_cold_s": cost.swap_cold_s,
            "unload_s": cost.unload_s,
            **_if_set(
                swap_reload_s=cost.swap_reload_s,
                process_bytes=cost.process_bytes,
                kv_tokens=cost.kv_tokens,
            ),
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
        **_if_set(unloaded_models=list(instance.unloaded_models), leave_s=instance.leave_s),
    }


def _if_set(**fields: Any) -> dict[str, Any]:
    """Leave out optional fields that say nothing: earlier readers refuse them."""
    return {
        name: value for name, value in fields.items() if value or (value == 0 and name == "swap_reload_s")
    }


def _groups_to_plain(groups: Sequence[PlannedGroup]) -> list[dict[str, Any]]:
    """Write groups; times that they share are written once, and are shared by what is returned."""
    known: dict[int, dict[str, Any]] = {}
    plain = []
    for group in groups:
        if id(group.time) not in known:
            known[id(group.time)] = _times_to_plain(group.time, known)
        plain.append(_group_to_plain(group, known[id(group.time)]))
    return plain


def _times_to_plain(times: Mapping[str, GroupTime], known: dict[int, dict[str, Any]]) -> dict[str, Any]:
    for time in times.values():
        if id(time) not in known:
            known[id(time)] = _time_to_plain(time)
    return {kind: known[id(time)] for kind, time in times.items()}


def _group_to_plain(group: PlannedGroup, times: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": group.id,
        "model": group.model,
        "requests": group.requests,
        "deadline_s": group.deadline_s,
        "priority": group.priority,
        "time": times,
        **({} if group.cls is None else {"class": group.cls}),
        **({} if group.p_met is None else {"p_met": group.p_met}),
        **_if_set(request_tokens=group.request_tokens),
    }


def _time_to_plain(time: GroupTime) -> dict[str, dict[str, float]]:
    """Write a time; shared errors only if there are any, for readers of earlier versions."""
    service, tail = _normal_to_plain(time.service), _normal_to_plain(time.tail)
    shared = (
        (service, "class_sd", time.class_sd_s),
        (service, "speed_sd", time.speed_sd_s),
        (tail, "speed_sd", time.tail_speed_sd_s),
    )
    for plain, key, sd_s in shared:
        if sd_s:
            plain[key] = sd_s
    return {"drain_s": service, "tail_s": tail}


def _normal_to_plain(normal: Normal) -> dict[str, float]:
    return {"mean": normal.mean, "var": normal.var}
