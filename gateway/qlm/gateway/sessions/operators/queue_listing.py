"""Class queues and virtual queues as operators list them, over HTTP and gRPC."""

from collections.abc import Mapping, Sequence

from qlm.domain.formats.clusters import Clusters, Thresholds, cluster_name
from qlm.domain.group import Group
from qlm.domain.ids import GroupId, InstanceId
from qlm.domain.view import ClusterView
from qlm.gateway.api.fields.queues import (
    ClassAttainment,
    ClassQueue,
    DividedClass,
    GroupFields,
    InstanceQueue,
    Queues,
)
from qlm.gateway.observability.class_attainment import class_attainment
from qlm.gateway.sessions.gateway import Gateway

Holders = Mapping[GroupId, Sequence[InstanceId]]
"""The instances on whose virtual queues each group is, by its id."""


async def list_queues(gateway: Gateway) -> Queues:
    """Return class queues, virtual queues and the attainment of classes as they are now."""
    attainment = await class_attainment(gateway.store, gateway.clock.now_ns())
    return queues(await gateway.store.view(), gateway.load.load.finished_per_s, attainment)


def queues(
    view: ClusterView, finished_per_s: float | None, attainment: Sequence[ClassAttainment] = ()
) -> Queues:
    """Return class queues with their depths, and virtual queues in order.

    Args:
        view: The cluster.
        finished_per_s: Smoothed rate of answers; None if unknown.
        attainment: How many of the latest requests of each class met their objective.
    """
    holders = holders_of(view)
    virtual: list[InstanceQueue] = [
        {
            "instance": each.instance,
            "version": each.version,
            "groups": [group_fields(group, holders) for group in each.groups],
        }
        for each in view.queues
    ]
    return {
        "classes": class_queues(view),
        "virtual_queues": virtual,
        "attainment": attainment,
        "finished_per_s": finished_per_s,
    }


def class_queues(view: ClusterView) -> list[ClassQueue]:
    """Return class queues with their depths."""
    return [
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
            "oldest_arrival_s": _seconds(each.oldest_arrival_ns),
            "ungrouped_arrival_s": _seconds(each.ungrouped_arrival_ns),
            "mean_prompt_tokens": each.mean_prompt_tokens,
            "mean_output_tokens": each.mean_output_tokens,
            "finished": each.finished,
        }
        for each in view.classes
    ]


def holders_of(view: ClusterView) -> Holders:
    """Return the instances on whose virtual queues each group is."""
    holders: dict[GroupId, list[InstanceId]] = {}
    for queue in view.queues:
        for id in dict.fromkeys(each.id for each in queue.groups):
            holders.setdefault(id, []).append(queue.instance)
    return holders


def group_fields(group: Group, holders: Holders) -> GroupFields:
    """Return a group, with the instances on whose virtual queues it is."""
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
        "instances": holders.get(group.id, ()),
    }


def cluster_fields(clusters: Clusters) -> Sequence[DividedClass]:
    """Return the divided classes with their thresholds; those of models as configured first."""
    fixed = [_divided(model, None, None, each) for model, each in sorted(clusters.fixed.items())]
    found = [
        _divided(cls.model, cls.slo, cls.priority, each)
        for cls, each in sorted(clusters.found.items(), key=lambda item: item[0].queue)
    ]
    return fixed + found


def _divided(model: str, slo: str | None, priority: int | None, thresholds: Thresholds) -> DividedClass:
    longest = (*thresholds, thresholds[-1] + 1) if thresholds else (1,)
    return {
        "model": model,
        "slo_class": slo,
        "priority": priority,
        "thresholds": thresholds,
        "clusters": [cluster_name(thresholds, tokens) for tokens in longest],
    }


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else ns / 1e9
