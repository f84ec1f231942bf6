"""Operations on the lead: which controller plans, and under which term."""

from qlm.domain.errors import NotLeadingError
from qlm.domain.ids import ControllerId
from qlm.domain.leadership import WAKE_LEADER, Leadership, Term
from qlm.store.effects import Effects
from qlm.store.state import SharedState
from qlm.store.tables import LeaderRow


def not_leading(term: Term) -> NotLeadingError:
    """Make the error that every store refuses a term with."""
    return NotLeadingError(f"nobody leads under term {term.n} of incarnation {term.incarnation} now")


class LeadOps(SharedState):
    """The leadership part of the core; each method is the `Store` method of its name."""

    def lead(self, name: ControllerId, ttl_s: float, now_ns: int) -> tuple[Leadership, Effects]:
        """Take the lead if nobody has it, or renew it; tell who leads."""
        row = self._standing(now_ns)
        if row is None:
            self._terms += 1
            row = self._leader = LeaderRow(name, self._terms, now_ns)
        if row.name == name:
            row.until_ns = now_ns + round(ttl_s * 1e9)
        return self._leadership(row), Effects()

    def leader(self, now_ns: int) -> Leadership | None:
        """Tell who leads; None if nobody does."""
        row = self._standing(now_ns)
        return None if row is None else self._leadership(row)

    def resign(self, term: Term, now_ns: int) -> tuple[bool, Effects]:
        """Give the lead back and wake the controllers that stand by; False if the term is not current."""
        if not self._leads(term, now_ns):
            return False, Effects()
        self._leader = None
        return True, Effects(wakeups=[WAKE_LEADER])

    def check_term(self, term: Term | None, now_ns: int) -> None:
        """Refuse what a controller asks that does not lead; None asks for no term.

        Raises:
            NotLeadingError: Nobody leads under this term now.
        """
        if term is not None and not self._leads(term, now_ns):
            raise not_leading(term)

    def _leads(self, term: Term, now_ns: int) -> bool:
        row = self._standing(now_ns)
        return row is not None and term == self._leadership(row).term

    def _standing(self, now_ns: int) -> LeaderRow | None:
        row = self._leader
        return row if row is not None and row.until_ns > now_ns else None

    def _leadership(self, row: LeaderRow) -> Leadership:
        return Leadership(leader=row.name, term=Term(self.incarnation, row.n), since_ns=row.since_ns)
