"""Options of TokenFlow. The paper gives few values; the others are ours, each with its reason."""

from enum import Enum, auto
from typing import NamedTuple

from qlm.domain.errors import InvalidValueError

QUANTUM_MIN_S = 0.5
QUANTUM_MAX_S = 1.5


class Unit(Enum):
    """Unit of a buffer in phi(b) = e^-b (equation 3)."""

    SECONDS = auto()
    """Time that the buffer lasts (ours): then readers of different pace compare."""
    TOKENS = auto()
    """As the paper has it: beyond about ten tokens all buffers are alike."""


class Options(NamedTuple):
    """Parameters of the policy.

    Attributes:
        quantum_s: Time between decisions; 0.5 to 1.5 (section 7.4).
        conservativeness: mu of the admission rule; 1 to 20 (section 7.4).
        phi_unit: Unit of the buffer in phi.
        gamma: What an empty buffer weighs in equation 3, in tokens that one request gets in a quantum (not
            given).
        reduction: lambda of equation 5 (not given).
        critical_s: Buffer below which one that is outside is looked at before the quantum ends (T_critical,
            not given).
    """

    quantum_s: float = 1.0
    conservativeness: float = 2.0
    phi_unit: Unit = Unit.SECONDS
    gamma: float = 2.0
    reduction: float = 0.5
    critical_s: float = 1.5

    def check(self) -> None:
        """Raise InvalidValueError if a value is out of its range."""
        if not QUANTUM_MIN_S <= self.quantum_s <= QUANTUM_MAX_S:
            raise InvalidValueError("quantum_s", self.quantum_s, f"{QUANTUM_MIN_S} to {QUANTUM_MAX_S}")
        if self.conservativeness < 1:
            raise InvalidValueError("conservativeness", self.conservativeness, "1 or more")
        if not 0 <= self.reduction <= 1:
            raise InvalidValueError("reduction", self.reduction, "0 to 1")
