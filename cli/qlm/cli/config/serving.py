"""Sections on serving: operations in use, the watchdog over engines, emulation, adapters, render tiers."""

from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from qlm.agents.batching.policies.registry import BY_ABORTS, POLICIES
from qlm.agents.core.stats.progress import WatchSettings
from qlm.cli.config.addresses import check_address
from qlm.cli.config.section import ConfigSection, WrittenPath
from qlm.planner.problem import Promises

ADAPTERS_MAX: Final = 1000
"""Most adapters of one model."""


def known_policy(name: str) -> str:
    """Return the name of a batch policy.

    Raises:
        ValueError: There is no such policy.
    """
    if name not in POLICIES:
        raise ValueError(f"is {name!r}; expected one of " + ", ".join(POLICIES))
    return name


BatchPolicyName = Annotated[str, AfterValidator(known_policy)]
BatchingHost = Literal["engine", "aborts"]


def check_batching_host(batching: str | None, by: BatchingHost) -> None:
    """Check that a batch policy can be hosted by aborts, if it is to be.

    Raises:
        ValueError: There is no policy, or it needs an engine that hosts it.
    """
    if by == "aborts" and batching not in BY_ABORTS:
        raise ValueError(
            f"has the batching_by 'aborts' and the batching {batching!r}; expected one of "
            + ", ".join(BY_ABORTS)
        )


_DEFAULT: Final = WatchSettings()


class OperationsConfig(ConfigSection):
    """LLM serving operations in use, beside request pulling and model swaps.

    Attributes:
        evict: Preempt running requests for more urgent ones; their KV cache is swapped to host memory or
            recomputed.
        demote: Demote requests that can no longer meet their objective behind those that can.
        limit_batch: Hold back batch work while running requests need a faster pace.
        warm_ahead: Prefetch weights files of models later in a virtual queue into host memory.
        balance: Spread the waiting requests of a class over instances.
        cluster: Divide classes by the length of their prompts where it is of several kinds.
        visit: Leave a model at the latest moment that the deadlines of the others allow, if that saves more
            requests than it costs; else as soon as a group of another model is first in the virtual queue.
        place: Give each instance its models for the next minutes, by arrival rates and swap costs; else any
            instance may serve all of its models at any time.
        patience_s: With `visit`, time that batch work waits before it can end a visit; for late work half of
            it, or three times its objective if that is longer. Each further such time makes it more urgent.
            After 2.5 such times a model with few requests is visited in any case, if swaps for that take a
            fifth of the time at most.
        late_weight: With `visit`, worth of a late or batch request whose patience has run out once, in
            requests that miss their objective. 0 serves such work only when an instance is idle.
        promises: Promises of requests (`slo.p_met`) in plans: `priced` weighs them against other misses,
            `hard` keeps them before anything else, `plain` ignores them.
    """

    evict: bool = True
    demote: bool = True
    limit_batch: bool = False
    warm_ahead: bool = True
    balance: bool = True
    cluster: bool = True
    visit: bool = True
    place: bool = True
    patience_s: float = Field(120.0, gt=0, le=86_400)
    late_weight: float = Field(0.2, ge=0, le=1)
    promises: Promises = "priced"


class WatchdogConfig(ConfigSection):
    """Watchdog of the engines' progress: an engine without a token for too long while it works is restarted.

    Attributes:
        silence_s: Fixed part of the time for which an engine may be silent, seconds; 0 for no watchdog.
        factor: Multiple of the longest time by its profile for what it computes, added to that.
        first_token_s: Further time until the first token of an engine that was just brought up, seconds.
        restarts_max: Restarts within `window_s` after which an engine is taken out of service.
        window_s: Time for which a restart counts, seconds.
        out_s: Time out of service, after which the engine is started again, seconds.
    """

    silence_s: float = Field(_DEFAULT.silence_s, ge=0, le=86_400)
    factor: float = Field(_DEFAULT.factor, ge=1, le=1000)
    first_token_s: float = Field(_DEFAULT.first_token_s, ge=0, le=86_400)
    restarts_max: int = Field(_DEFAULT.restarts_max, ge=0, le=100)
    window_s: float = Field(_DEFAULT.window_s, gt=0, le=86_400)
    out_s: float = Field(_DEFAULT.out_s, gt=0, le=86_400)


class EmulateConfig(ConfigSection):
    """Behaviour of emulated engines.

    Attributes:
        time_scale: Real seconds per emulated second.
        mean_output_tokens: Mean length of answers that end by themselves.
        cold_start: Emulate the time to load weights when an engine starts.
        fixed_ms: Answer each request after this time, whatever the load, instead of emulating a GPU.
        async_scheduling: Engines schedule each iteration while the one before it runs (vLLM's
            `--async-scheduling`); without it, as their profiles say.
    """

    time_scale: float = Field(1.0, gt=0, le=1000)
    mean_output_tokens: int = Field(200, ge=1)
    cold_start: bool = False
    fixed_ms: float | None = Field(None, gt=0, le=3_600_000)
    async_scheduling: bool | None = None


class AdapterConfig(ConfigSection):
    """A LoRA adapter of a model: a model of its own to clients, served by the engines of its base.

    Attributes:
        id: Its name for clients, and at its engines.
        path: Its folder, with `adapter_config.json`; needed by engines that are started with `vllm serve`. An
            engine at the `url` of an instance must serve it already.
    """

    # Without "=", which separates name and path in vLLM's own option.
    id: Annotated[str, Field(min_length=1, max_length=60, pattern=r"^[A-Za-z0-9][\x21-\x3c\x3e-\x7e]*$")]
    path: WrittenPath | None = None


class RenderConfig(ConfigSection):
    """Render tier of a model, for tools, JSON by schema and reasoning. Emulated models have one without this.

    Attributes:
        url: Base address of a running `vllm launch render` that serves the model under its id; without it,
            each gateway starts one on its machine, with `vllm.python`.
        extra_args: Arguments of the one that is started: `--enable-auto-tool-choice` and
            `--tool-call-parser` for tools, `--reasoning-parser` for a model that reasons. The model's engines
            get `--reasoning-parser` and `--reasoning-parser-plugin` from here, too.
        reasoning_parser: With `url`, the `--reasoning-parser` of that tier, for the model's engines.
        reasons: The model reasons: all its conversations go through the render tier, which tells reasoning
            from text.
        timeout_s: Limit for each call, seconds.
    """

    url: str | None = None
    extra_args: tuple[str, ...] = ()
    reasoning_parser: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    reasons: bool = False
    timeout_s: float = Field(30.0, gt=0, le=600)

    @model_validator(mode="after")
    def _one_or_the_other(self) -> Self:
        if self.url is not None:
            check_address("url", self.url, ("http", "https"))
            if self.extra_args:
                raise ValueError(
                    f"has a url and the extra_args {list(self.extra_args)}; expected one of them"
                )
        elif self.reasoning_parser is not None:
            raise ValueError(
                f"has the reasoning_parser {self.reasoning_parser!r} and no url; "
                "expected --reasoning-parser in extra_args"
            )
        return self

    def check_emulated(self) -> None:
        """Check the render tier of an emulated model, which has one without being configured.

        Raises:
            ValueError: It has arguments, which would do nothing.
        """
        if self.extra_args:
            raise ValueError(
                f"has the render.extra_args {list(self.extra_args)}; expected the url of a render tier or "
                "the engine vllm: its engine is emulated, and its render tier, too"
            )
