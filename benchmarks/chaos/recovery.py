"""Recovery from one fault."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """Recovery from one fault; seconds from the kill.

    Attributes:
        fault: Kind of fault.
        hit: Its target.
        repaired_s: Time to the restart; for Redis and RabbitMQ, to their first answer.
        open: Unfinished requests at the kill.
        new_request_s: Time to the first answer of a later request; None if there was none in time.
        at_once_s: Time to the answer of the request sent at the kill.
        all_ended_s: Time to the end of all earlier requests; None if not in time.
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
        """Format as one line."""
        seconds = {
            "repaired": self.repaired_s,
            "new request": self.new_request_s,
            "sent at once": self.at_once_s,
            "all ended": self.all_ended_s,
            "silence": self.silence_s,
        }
        figures = ", ".join(f"{name} {_shown(value)}" for name, value in seconds.items())
        return f"  {self.fault:<26}{self.hit:<28}{self.open:4} open: {figures}"


def _shown(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds:6.2f}"
