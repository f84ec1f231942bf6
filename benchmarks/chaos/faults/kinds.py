"""All kinds of faults, in the order in which a round tries them."""

from collections.abc import Sequence
from typing import Final

from benchmarks.chaos.faults.doubles import DOUBLES
from benchmarks.chaos.faults.fault import Kind
from benchmarks.chaos.faults.hangs import HANGS
from benchmarks.chaos.faults.keys import KEYS
from benchmarks.chaos.faults.kills import KILLS
from benchmarks.chaos.faults.partitions import PARTITIONS
from benchmarks.chaos.faults.servers import SERVERS
from benchmarks.chaos.faults.stops import STOPS
from benchmarks.chaos.faults.workers import WORKER_FAULTS

KINDS: Final = {
    kind.name: kind
    for kind in (*KILLS, *HANGS, *STOPS, *SERVERS, *KEYS, *PARTITIONS, *DOUBLES, *WORKER_FAULTS)
}
GROUPS: Final = tuple(dict.fromkeys(kind.group for kind in KINDS.values()))


def chosen(names: str) -> Sequence[Kind]:
    """Return the kinds that a comma-separated list of names and groups selects, in their order.

    Raises:
        ValueError: A name is unknown.
    """
    wanted = [name.strip() for name in names.split(",")]
    if unknown := [name for name in wanted if name not in KINDS and name not in GROUPS]:
        raise ValueError(f"unknown kind {unknown[0]!r}; there are {', '.join((*GROUPS, *KINDS))}")
    return [kind for kind in KINDS.values() if kind.name in wanted or kind.group in wanted]
