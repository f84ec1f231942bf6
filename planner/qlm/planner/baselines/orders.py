"""Orders in which groups are taken; each ends with the id, so that none depends on the input order."""

from qlm.domain.ids import GroupId
from qlm.planner.problem import PlannedGroup


def deadline_s(group: PlannedGroup) -> float:
    """The deadline of a group; no deadline is the last one."""
    return float("inf") if group.deadline_s is None else group.deadline_s


def urgency(group: PlannedGroup) -> tuple[int, float, GroupId]:
    """Order by priority, then deadline (none is last), then identity."""
    return (group.priority, deadline_s(group), group.id)


def arrival(group: PlannedGroup) -> tuple[float, GroupId]:
    """Order by deadline alone, which stands for the arrival: `docs/planner-baselines.md` says when."""
    return (deadline_s(group), group.id)
