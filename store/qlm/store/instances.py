"""Operations on instances: heartbeats, and what is asked of them."""

from collections.abc import Mapping
from dataclasses import fields, replace
from operator import attrgetter
from typing import Final

from qlm.domain.fleet import InstanceStatus, ServedWork
from qlm.domain.ids import InstanceId
from qlm.domain.lease import Holder
from qlm.domain.notices import CancelAsked, DrainAsked, InstanceNotice, QueueChanged
from qlm.domain.operations import OperationStats
from qlm.store.effects import WAKE_INSTANCE, Effects
from qlm.store.output_log import OutputOps
from qlm.store.tables import InstanceRow

_GAUGES: Final = ("running", "parked", "staged", "answers", "kv_used_tokens", "work", "operations")
_NOT_GAUGES: Final = attrgetter(*(each.name for each in fields(InstanceStatus) if each.name not in _GAUGES))


class InstanceOps(OutputOps):
    """The instance part of the core; each method is the `Store` method of its name."""

    def heartbeat(self, status: InstanceStatus, ttl_s: float, now_ns: int) -> tuple[None, Effects]:
        """Say that an instance lives; silent for `ttl_s`, it counts as dead."""
        effects = Effects()
        until_ns = now_ns + round(ttl_s * 1e9)
        row = self._instances.get(status.id)
        if row is None or not self._alive(status.holder, now_ns):
            self._instances[status.id] = InstanceRow(status, until_ns)
            effects.wakeups.append(WAKE_INSTANCE)
            return None, effects
        if not is_steady(row.status, status):
            effects.wakeups.append(WAKE_INSTANCE)
        row.status, row.alive_until_ns = status, until_ns
        return None, effects

    def leave(self, holder: Holder) -> tuple[None, Effects]:
        """Say that this life of the instance is over, at once."""
        effects = Effects()
        row = self._instances.get(holder.instance)
        if row is not None and row.status.holder == holder:
            del self._instances[holder.instance]
            effects.wakeups.append(WAKE_INSTANCE)
        return None, effects

    def say_unplaced(self, instance: InstanceId, why: str, ttl_s: float, now_ns: int) -> None:
        """Say that an instance is to run and has no place yet, and why."""
        self._unplaced[instance] = (now_ns + round(ttl_s * 1e9), why)

    def unplaced(self, now_ns: int) -> Mapping[InstanceId, str]:
        """Tell which instances were said to have no place, and why; those that live are left out."""
        live = {status.id for status in self.live_instances(now_ns)}
        told = {id: each for id, each in self._unplaced.items() if each[0] > now_ns and id not in live}
        self._unplaced = told
        return {id: why for id, (_, why) in sorted(told.items())}

    def ask_drain(self, instance: InstanceId, now_ns: int) -> tuple[bool, Effects]:
        """Ask an instance to drain; False if it is not alive."""
        effects = Effects()
        row = self._instances.get(instance)
        if row is None or row.alive_until_ns <= now_ns:
            return False, effects
        row.drain_asked = True
        effects.notices.append((instance, DrainAsked()))
        return True, effects

    def standing_notices(self, instance: InstanceId) -> tuple[InstanceNotice, ...]:
        """Return all that an instance must be told when its notices may have been missed."""
        notices: list[InstanceNotice] = [QueueChanged()]
        row = self._instances.get(instance)
        if row is None:
            return tuple(notices)
        for id in sorted(self._held):
            held = self._held[id]
            if held.cancel is not None and held.holder == row.status.holder:
                notices.append(CancelAsked(id=id, outcome=held.cancel))
        if row.drain_asked:
            notices.append(DrainAsked())
        return tuple(notices)

    def live_instances(self, now_ns: int) -> tuple[InstanceStatus, ...]:
        """Return the status of each live instance, by name."""
        live = [row.status for row in self._instances.values() if row.alive_until_ns > now_ns]
        return tuple(sorted(live, key=lambda status: status.id))


def steady(status: InstanceStatus) -> InstanceStatus:
    """Leave out the gauges that move with every token: they alone do not concern the plan."""
    return replace(
        status, running=0, parked=0, staged=(), answers=(), kv_used_tokens=0, work=ServedWork(),
        operations=OperationStats(),
    )  # fmt: skip


def is_steady(before: InstanceStatus, now: InstanceStatus) -> bool:
    """Whether `steady` of both is the same, without making them: every heartbeat asks."""
    return _NOT_GAUGES(before) == _NOT_GAUGES(now)
