"""What the awake engine has done since it came up, summed as it happens."""

from qlm.domain.fleet import ServedWork


class WorkMeter:
    """Sums for `ServedWork`.

    Attributes:
        prompt_tokens: Prompt tokens of the generations submitted.
        output_tokens: Tokens generated.
        ended: Generations that came to their end by themselves.
    """

    def __init__(self, now_ns: int = 0) -> None:
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.ended = 0
        self._busy_ns = 0
        self._request_ns = 0
        self._running = 0
        self._since_ns = now_ns

    def observe(self, running: int, now_ns: int) -> None:
        """Take note that `running` requests run from now on; until now it was as many as last observed."""
        # A clock that was set back must not take anything away.
        elapsed_ns = max(0, now_ns - self._since_ns)
        if self._running:
            self._busy_ns += elapsed_ns
            self._request_ns += elapsed_ns * self._running
        self._running, self._since_ns = running, now_ns

    def work(self) -> ServedWork:
        """The sums up to the last observation."""
        return ServedWork(
            busy_s=self._busy_ns / 1e9,
            request_s=self._request_ns / 1e9,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            ended=self.ended,
        )
