"""Operations on leadership: the controller that plans, and its term."""

from qlm.domain.errors import NotLeadingError
from qlm.domain.ids import ControllerId
from qlm.domain.leadership import WAKE_LEADER, Leadership, Term
from qlm.store.core.effects import Effects
from qlm.store.core.state import State
from qlm.store.core.tables import LeaderRow


def not_leading(term: Term) -> NotLeadingError:
    """Make the error with which every store rejects a term."""
    return NotLeadingError(f"term {term.n} of incarnation {term.incarnation} is not current")


def acquire_leadership(
    state: State, name: ControllerId, ttl_s: float, now_ns: int
) -> tuple[Leadership, Effects]:
    row = _current(state, now_ns)
    if row is None:
        terms = state.leader.n if state.leader is not None else 0
        row = state.leader = LeaderRow(name, terms + 1, now_ns)
    if row.name == name:
        row.until_ns = now_ns + round(ttl_s * 1e9)
    return _leadership(state, row), Effects()


def leader(state: State, now_ns: int) -> Leadership | None:
    row = _current(state, now_ns)
    return None if row is None else _leadership(state, row)


def resign(state: State, term: Term, now_ns: int) -> tuple[bool, Effects]:
    if state.leader is None or not _leads(state, term, now_ns):
        return False, Effects()
    state.leader.until_ns = 0
    return True, Effects(wakeups=[WAKE_LEADER])


def check_term(state: State, term: Term | None, now_ns: int) -> None:
    """Reject a write under a term that is not current; None asks for no term.

    Raises:
        NotLeadingError: The term is not current.
    """
    if term is not None and not _leads(state, term, now_ns):
        raise not_leading(term)


def _leads(state: State, term: Term, now_ns: int) -> bool:
    row = _current(state, now_ns)
    return row is not None and term == _leadership(state, row).term


def _current(state: State, now_ns: int) -> LeaderRow | None:
    row = state.leader
    return row if row is not None and row.until_ns > now_ns else None


def _leadership(state: State, row: LeaderRow) -> Leadership:
    return Leadership(leader=row.name, term=Term(state.incarnation, row.n), since_ns=row.since_ns)
