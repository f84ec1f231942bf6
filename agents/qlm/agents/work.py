"""What the awake engine has done since it came up, summed as it happens."""

from qlm.agents.held import Held
from qlm.domain.fleet import ServedWork


class WorkMeter:
    """Sums for `ServedWork`.

    Attributes:
        prompt_tokens: Prompt tokens of the generations submitted, but for those loaded from host memory.
        output_tokens: Tokens generated.
        ended: Generations that came to their end by themselves.
        withdrawn_tokens: Prompt tokens of those that were stopped before their first token.
        repeated_tokens: Prompt tokens that were computed again.
        request_ns: Time that requests ran, summed over requests, up to the last observation.
        token_steps: Sum of O (p + O / 2) over the requests that ended.
        token_step_squares: Sum of the squares.
    """

    def __init__(self, now_ns: int = 0) -> None:
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.ended = 0
        self.withdrawn_tokens = 0
        self.repeated_tokens = 0
        self.token_steps = 0.0
        self.token_step_squares = 0.0
        self._busy_ns = 0
        self.request_ns = 0
        self._running = 0
        self._since_ns = now_ns

    @property
    def written_tokens(self) -> int:
        """Tokens whose KV cache was computed, and written through to host memory if the engine keeps some."""
        return self.prompt_tokens + self.output_tokens

    def started(self, held: Held, prompt_tokens: int) -> None:
        """Count a generation that starts; what is loaded from host memory is not computed."""
        if not held.swapped_in:
            self.prompt_tokens += prompt_tokens
        held.kv_meter, held.kv_written = self, self.written_tokens - (0 if held.swapped_in else prompt_tokens)

    def observe(self, running: int, now_ns: int) -> None:
        """Take note that `running` requests run from now on; until now it was as many as last observed."""
        # A clock that was set back must not take anything away.
        elapsed_ns = max(0, now_ns - self._since_ns)
        if self._running:
            self._busy_ns += elapsed_ns
            self.request_ns += elapsed_ns * self._running
        self._running, self._since_ns = running, now_ns

    def stopped(self, held: Held) -> None:
        """Count what the prompt of a generation was that runs no more, however it came to that."""
        again = held.resumed_at
        if held.swapped_in and again:
            return
        if len(held.output) == again:
            self.withdrawn_tokens += held.request.prompt_tokens + again
        elif again:
            self.repeated_tokens += held.request.prompt_tokens + again

    def completed(self, held: Held) -> None:
        """Count a request whose generation came to its end by itself."""
        output = len(held.output)
        steps = output * (held.request.prompt_tokens + output / 2)
        self.ended += 1
        self.token_steps += steps
        self.token_step_squares += steps * steps

    def work(self) -> ServedWork:
        """The sums up to the last observation."""
        return ServedWork(
            busy_s=self._busy_ns / 1e9,
            request_s=self.request_ns / 1e9,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            ended=self.ended,
            withdrawn_tokens=self.withdrawn_tokens,
            repeated_tokens=self.repeated_tokens,
            token_steps=self.token_steps,
            token_step_squares=self.token_step_squares,
        )
