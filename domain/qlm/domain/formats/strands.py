"""Strands: parts of a model's tasks, each with its own queues, so that a part can be served at one instance.

A strand is the end of a class's cluster: `all-strand-2`. All calls of a task are in the same strand, whatever
their gateways and objectives.
"""

import re
from dataclasses import replace
from functools import lru_cache
from hashlib import blake2b
from typing import Final, NamedTuple

from qlm.domain.group import RequestClass

STRANDS_MAX: Final = 8
"""Most strands of a model: each may cost a queue, a group and a place in each plan per objective."""

_MARK: Final = "-strand-"

_NAMED: Final = re.compile(rf"(?P<cluster>.*){_MARK}(?P<number>\d{{1,3}})", re.DOTALL)


class TaskName(NamedTuple):
    """Name of a task: tasks of different tenants never meet."""

    tenant: str
    id: str


@lru_cache(maxsize=4096)
def strand_of_task(task: TaskName, strands: int) -> int:
    """Return the strand of a task; one strand more or less moves only its share of the tasks."""
    name = f"{len(task.tenant)} {task.tenant} {task.id}"
    return max(range(strands), key=lambda number: rank(name, str(number)))


def rank(name: str, place: str) -> bytes:
    """Return the rank of a place for a name, the same on every machine (rendezvous hashing)."""
    return blake2b(f"{name} {place}".encode(), digest_size=8).digest()


@lru_cache(maxsize=1024)
def in_strand(cls: RequestClass, number: int) -> RequestClass:
    """Return the class of the requests of a strand."""
    return replace(cls, cluster=f"{cls.cluster}{_MARK}{number}")


@lru_cache(maxsize=4096)
def strand_of(cls: RequestClass) -> int | None:
    """Return the strand of a class; None if it is of no strand."""
    return divided_name(cls.cluster)[1]


def divided_name(cluster: str) -> tuple[str, int | None]:
    """Return the range of lengths and the strand that the name of a cluster consists of."""
    named = _NAMED.fullmatch(cluster)
    return (cluster, None) if named is None else (named["cluster"], int(named["number"]))
