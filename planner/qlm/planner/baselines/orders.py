"""Orders in which groups are taken; each ends with the id, so that none depends on the input order."""

from qlm.domain.ids import GroupId
from qlm.domain.urgency import deadline_or_last, urgency
from qlm.planner.problem import PlannedGroup


def by_urgency(group: PlannedGroup) -> tuple[int, float, GroupId]:
    """Order by urgency, then identity."""
    return (*urgency(group.priority, group.deadline_s), group.id)


def by_deadline(group: PlannedGroup) -> tuple[float, GroupId]:
    """Order by deadline alone, which stands for the arrival: `docs/planner-baselines.md` says when."""
    return (deadline_or_last(group.deadline_s), group.id)
