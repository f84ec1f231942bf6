"""How long one fault was felt."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """How one fault was got over; seconds from the kill.

    Attributes:
        fault: Which.
        hit: What exactly.
        repaired_s: Until the part was started again; Redis and RabbitMQ: until they answered.
        open: Requests under way at the kill.
        new_request_s: Until the first answer of a request that was sent after it; None: none in time.
        at_once_s: Until the answer of the one that was sent at once.
        all_ended_s: Until all requests sent before it had ended; None: not in time.
        silence_s: Longest pause between two tokens of a stream.
    """

    fault: str
    hit: str
    repaired_s: float
    open: int
    new_request_s: float | None
    at_once_s: float | None
    all_ended_s: float | None
    silence_s: float

    def line(self) -> str:
        """Write it in one line."""
        seconds = {
            "repaired": self.repaired_s,
            "new request": self.new_request_s,
            "sent at once": self.at_once_s,
            "all ended": self.all_ended_s,
            "silence": self.silence_s,
        }
        figures = ", ".join(f"{name} {_shown(value)}" for name, value in seconds.items())
        return f"  {self.fault:<12}{self.hit:<22}{self.open:4} open: {figures}"


def _shown(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds:6.2f}"
