"""Operations on instances: heartbeats, notices, and instances without a place."""

from collections.abc import Mapping
from dataclasses import fields, replace
from operator import attrgetter
from typing import Final

from qlm.domain.fleet import InstanceStatus, ServedWork
from qlm.domain.ids import InstanceId, SessionId
from qlm.domain.lease import Holder, InstanceHeld
from qlm.domain.notices import CancelAsked, DrainAsked, InstanceNotice, LeaseHeld, QueueChanged
from qlm.domain.operations import OperationStats
from qlm.store.core.effects import WAKE_INSTANCE, Effects
from qlm.store.core.lifecycle import is_alive
from qlm.store.core.state import State
from qlm.store.core.tables import InstanceRow

_GAUGES: Final = (
    "running", "parked", "staged", "answers", "prompts", "kv_used_tokens", "work", "operations",
)  # fmt: skip
_NOT_GAUGES: Final = attrgetter(*(each.name for each in fields(InstanceStatus) if each.name not in _GAUGES))


def heartbeat(
    state: State, status: InstanceStatus, ttl_s: float, now_ns: int, replaces: SessionId | None = None
) -> tuple[InstanceHeld | None, Effects]:
    effects = Effects()
    until_ns = now_ns + round(ttl_s * 1e9)
    row = state.instances.get(status.id)
    if row is not None and row.alive_until_ns > now_ns:
        session = row.status.holder.session
        if session not in (status.holder.session, replaces):
            lapses_in_s = (row.alive_until_ns - now_ns) / 1e9
            process = row.status.process
            return InstanceHeld(session=session, process=process, lapses_in_s=lapses_in_s), effects
    if row is None or not is_alive(state, status.holder, now_ns):
        state.instances[status.id] = InstanceRow(status, until_ns)
        effects.wakeups.append(WAKE_INSTANCE)
        return None, effects
    if not is_steady(row.status, status):
        effects.wakeups.append(WAKE_INSTANCE)
    row.status, row.alive_until_ns = status, until_ns
    return None, effects


def leave(state: State, holder: Holder) -> tuple[None, Effects]:
    effects = Effects()
    row = state.instances.get(holder.instance)
    if row is not None and row.status.holder == holder:
        del state.instances[holder.instance]
        effects.wakeups.append(WAKE_INSTANCE)
    return None, effects


def report_unplaced(state: State, instance: InstanceId, why: str, ttl_s: float, now_ns: int) -> None:
    state.reports.unplaced[instance] = (now_ns + round(ttl_s * 1e9), why)


def unplaced(state: State, now_ns: int) -> Mapping[InstanceId, str]:
    live = {status.id for status in live_instances(state, now_ns)}
    reported = {
        id: each for id, each in state.reports.unplaced.items() if each[0] > now_ns and id not in live
    }
    state.reports.unplaced = reported
    return {id: why for id, (_, why) in sorted(reported.items())}


def report_refused_agent(state: State, instance: InstanceId, why: str, ttl_s: float, now_ns: int) -> None:
    state.reports.refused_agents[instance] = (now_ns + round(ttl_s * 1e9), why)


def refused_agents(state: State, now_ns: int) -> Mapping[InstanceId, str]:
    state.reports.refused_agents = {
        id: each for id, each in state.reports.refused_agents.items() if each[0] > now_ns
    }
    return {id: why for id, (_, why) in sorted(state.reports.refused_agents.items())}


def ask_drain(state: State, instance: InstanceId, now_ns: int) -> tuple[bool, Effects]:
    effects = Effects()
    row = state.instances.get(instance)
    if row is None or row.alive_until_ns <= now_ns:
        return False, effects
    row.drain_asked = True
    effects.notices.append((instance, DrainAsked()))
    return True, effects


def standing_notices(state: State, instance: InstanceId) -> tuple[InstanceNotice, ...]:
    """Return the notices to repeat to an instance whose subscription begins or was interrupted."""
    notices: list[InstanceNotice] = [QueueChanged()]
    row = state.instances.get(instance)
    if row is None:
        return tuple(notices)
    own = {id: each for id, each in sorted(state.leases.rows.items()) if each.holder == row.status.holder}
    notices += [LeaseHeld(id=id, epoch=each.epoch) for id, each in own.items()]
    notices += [CancelAsked(id=id, outcome=each.cancel.outcome) for id, each in own.items() if each.cancel]
    if row.drain_asked:
        notices.append(DrainAsked())
    return tuple(notices)


def live_instances(state: State, now_ns: int) -> tuple[InstanceStatus, ...]:
    """Return the status of each live instance, by name."""
    live = [row.status for row in state.instances.values() if row.alive_until_ns > now_ns]
    return tuple(sorted(live, key=lambda status: status.id))


def steady(status: InstanceStatus) -> InstanceStatus:
    """Reset the gauges that change with every token: a change of these alone does not concern the plan."""
    return replace(
        status, running=0, parked=0, staged=(), answers=(), prompts=(), kv_used_tokens=0, work=ServedWork(),
        operations=OperationStats(),
    )  # fmt: skip


def is_steady(before: InstanceStatus, now: InstanceStatus) -> bool:
    """Compare `steady` of both, without making them: this runs with every heartbeat."""
    return _NOT_GAUGES(before) == _NOT_GAUGES(now)
