"""Work of the awake engine since it woke, summed event by event."""

from qlm.agents.core.request import TrackedRequest
from qlm.domain.fleet import ServedWork


class WorkMeter:
    """Sums for `ServedWork`.

    Attributes:
        prompt_tokens: Prompt tokens of submitted generations, without those loaded from host memory.
        output_tokens: Tokens generated.
        ended: Generations that finished by themselves.
        unused_prompt_tokens: Prompt tokens of generations stopped before their first token.
        repeated_tokens: Prompt tokens computed again.
        token_steps: Sum of O (p + O / 2) over finished requests, for prompt p and output O.
        token_step_squares: Sum of the squares.
        cached_tokens: Prompt tokens that the engine found in its prefix cache.
        request_ns: Running time, summed over requests, up to the last observation.
    """

    def __init__(self, now_ns: int = 0) -> None:
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.ended = 0
        self.unused_prompt_tokens = 0
        self.repeated_tokens = 0
        self.token_steps = 0.0
        self.token_step_squares = 0.0
        self.cached_tokens = 0
        self._busy_ns = 0
        self.request_ns = 0
        self._running = 0
        self._since_ns = now_ns

    @property
    def written_tokens(self) -> int:
        """Tokens whose KV cache was computed, and written through to host memory if the engine offloads."""
        return self.prompt_tokens + self.output_tokens

    def started(self, tracked: TrackedRequest, prompt_tokens: int) -> None:
        """Count a generation that starts."""
        generation = tracked.generation
        # `kv_offload.kept_in_host` later compares how much this meter has counted as written since.
        generation.kv_meter = self
        if generation.swapped_in:
            # Loaded from host memory, not computed.
            generation.kv_written = self.written_tokens
        else:
            self.prompt_tokens += prompt_tokens
            generation.kv_written = self.written_tokens - prompt_tokens

    def observe(self, running: int, now_ns: int) -> None:
        """Note that `running` requests run from now on."""
        elapsed_ns = now_ns - self._since_ns
        if self._running and elapsed_ns > 0:  # a clock that was set back must not reduce a sum
            self._busy_ns += elapsed_ns
            self.request_ns += elapsed_ns * self._running
        self._running, self._since_ns = running, now_ns

    def stopped(self, tracked: TrackedRequest) -> None:
        """Count the prompt of a generation that is over, by what it was used for."""
        resumed_at = tracked.resumed_at
        if tracked.generation.swapped_in and resumed_at:
            return
        if len(tracked.output) == resumed_at:
            self.unused_prompt_tokens += tracked.request.prompt_tokens + resumed_at
        elif resumed_at:
            self.repeated_tokens += tracked.request.prompt_tokens + resumed_at

    def completed(self, tracked: TrackedRequest) -> None:
        """Count a request whose generation finished by itself."""
        output = len(tracked.output)
        steps = output * (tracked.request.prompt_tokens + output / 2)
        self.ended += 1
        self.token_steps += steps
        self.token_step_squares += steps * steps

    def found(self, tracked: TrackedRequest, cached_tokens: int) -> None:
        """Count what the prefix cache held of the prompt of a generation that is over."""
        if not (tracked.generation.swapped_in and tracked.resumed_at):  # else the prompt was not counted
            self.cached_tokens += cached_tokens

    def work(self) -> ServedWork:
        """Return the sums up to the last observation."""
        return ServedWork(
            busy_s=self._busy_ns / 1e9,
            request_s=self.request_ns / 1e9,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            ended=self.ended,
            withdrawn_tokens=self.unused_prompt_tokens,
            repeated_tokens=self.repeated_tokens,
            token_steps=self.token_steps,
            token_step_squares=self.token_step_squares,
            cached_tokens=self.cached_tokens,
        )
