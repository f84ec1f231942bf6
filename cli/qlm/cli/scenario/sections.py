"""Sections of a scenario file: fleet, objectives, faults and limits."""

from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Self, Union, get_args, get_origin

from pydantic import Field, ValidationInfo, field_validator, model_validator

from qlm.cli.config.fleet import INSTANCES_MAX, MODELS_MAX, ModelName, Name
from qlm.cli.config.section import ConfigSection
from qlm.cli.config.serving import BatchingHost, BatchPolicyName, check_batching_host
from qlm.cli.config.slo import SloConfig
from qlm.domain.request import PRIORITY_LIMIT
from qlm.domain.slo import OnMiss
from qlm.simulator.workload.formats import ZeroOutput
from qlm.simulator.workload.trace_format import TraceFormat

TIME_MAX_S = 31_536_000.0
"""Longest simulated time, a year."""

Seconds = Annotated[float, Field(ge=0, le=TIME_MAX_S)]
Duration = Annotated[float, Field(gt=0, le=TIME_MAX_S)]
RoundTripMs = Annotated[float, Field(ge=0, le=60_000)]
CsvColumn = Literal[
    "arrival_s", "model", "tenant", "slo_class", "input_tokens", "output_tokens", "prefix_id", "prefix_tokens"
]


def no_truth(value: Any) -> Any:
    """Return a value that is not true or false, which Python treats as the numbers 1 and 0.

    Raises:
        ValueError: The value is true or false.
    """
    if isinstance(value, bool):
        raise ValueError(f"is {value}; expected a number")
    return value


def _is_number(kind: Any) -> bool:
    if get_origin(kind) in (Annotated, Union, UnionType):
        return any(_is_number(each) for each in get_args(kind))
    return kind in (int, float)


class Section(ConfigSection):
    """Section of a scenario file; true and false are refused as numbers."""

    @field_validator("*", mode="before")
    @classmethod
    def _numbers(cls, value: Any, info: ValidationInfo) -> Any:
        kind = cls.model_fields[str(info.field_name)].annotation
        return no_truth(value) if _is_number(kind) else value

    def one_of(self, *names: str) -> str:
        """Return the one key of `names` that is given.

        Raises:
            ValueError: None of them is given, or several are.
        """
        given = [name for name in names if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"has {given or 'none'} of {list(names)}; expected exactly one")
        return given[0]


class ModelSection(Section):
    """A served model.

    Attributes:
        id: Its name.
        profile: Name of the model in the profiles; without it, the id.
        config: Its `config.json`, or the folder with it, from which its speed is computed where there is no
            profile.
        context_tokens: Largest number of prompt plus output tokens; without it, the largest that all its
            profiles allow.
        async_scheduling: Its engines schedule each iteration while the one before it runs (vLLM's
            `--async-scheduling`); without it, as its profiles say.
    """

    id: ModelName
    profile: str | None = None
    config: Path | None = None
    context_tokens: int | None = Field(None, ge=2, le=100_000_000)
    async_scheduling: bool | None = None


class InstanceSection(Section):
    """One LLM serving instance, or `count` equal ones.

    Attributes:
        id: Its name; with `count` followed by -0, -1 and so on.
        count: Number of instances; without it, one instance with the name `id`.
        accelerator: Kind of accelerator, as in the profiles.
        gpus: Accelerators that its engines span.
        models: Ids of models it may serve.
        awake: Which of them is awake at the start; without it, the first.
        host_memory_gib: Host memory for sleeping models, and for prefetched weights files.
        swap_tiers: Tiers in which models may sleep; without any, a model swap ends the old model's engine.
        batched_tokens_max: Most tokens of one iteration; without it, the profile's.
        batching: Batch policy of its engines; without it, first come, first served.
        batching_by: What puts that policy into effect: `engine`, or `aborts` of the agent; then for `edf`,
            `virtual-queue`, `annealing`, `annealing-continuous` and `fcfs` only.
    """

    id: Name
    count: int | None = Field(None, ge=1, le=INSTANCES_MAX)
    accelerator: str = Field(min_length=1, max_length=40)
    gpus: int = Field(1, ge=1, le=64)
    models: tuple[str, ...] = Field(min_length=1)
    awake: str | None = None
    host_memory_gib: float = Field(64.0, gt=0, le=1_000_000)
    swap_tiers: tuple[Literal["warm", "reload"], ...] = ("warm", "reload")
    batched_tokens_max: int | None = Field(None, ge=1, le=1_000_000)
    batching: BatchPolicyName | None = None
    batching_by: BatchingHost = "engine"

    @model_validator(mode="after")
    def _hosted(self) -> Self:
        check_batching_host(self.batching, self.batching_by)
        return self

    @property
    def ids(self) -> tuple[str, ...]:
        """Names of the instances."""
        if self.count is None:
            return (self.id,)
        return tuple(f"{self.id}-{number}" for number in range(self.count))


class SloClassSection(SloConfig, Section):
    """An objective: a deadline, a first-token target with or without a pace, or none of them (batch).

    Attributes:
        priority: Priority of its requests; the lower number is served first.
        on_miss: Serve or drop requests whose deadline has passed.
    """

    priority: int = Field(0, ge=-PRIORITY_LIMIT, le=PRIORITY_LIMIT)
    on_miss: OnMiss = OnMiss.SERVE


class TraceSection(Section):
    """A file with recorded requests.

    Attributes:
        path: The file; `${NAME}` in it is an environment variable.
        format: File format.
        columns: For csv, names of columns that differ from the default ones.
        zero_output: Drop (and count) or refuse rows without output tokens.
        tokenizer: For sharegpt, the tokenizer.json that counts tokens.
        from_s: Start of the part that is used; its times then start there.
        duration_s: Length of that part; without it, up to the end of the file.
    """

    path: Path
    format: TraceFormat
    columns: Mapping[CsvColumn, str] = {}
    zero_output: ZeroOutput = ZeroOutput.DROP
    tokenizer: Path | None = None
    from_s: Seconds = 0.0
    duration_s: Duration | None = None

    @model_validator(mode="after")
    def _suits_format(self) -> Self:
        if self.columns and self.format is not TraceFormat.CSV:
            raise ValueError(f"has columns for the format {self.format}; expected them with csv only")
        if (self.tokenizer is None) == (self.format is TraceFormat.SHAREGPT):
            shown = self.tokenizer and str(self.tokenizer)
            raise ValueError(
                f"has the tokenizer {shown!r} for the format {self.format}; expected one with sharegpt, "
                "whose texts it counts, and with no other"
            )
        return self


class ProfileErrorSection(Section):
    """An error of profiles: the engines take other times than the controller and the agents expect.

    They learn the true times, as in production. Errors that name the same engine are multiplied.

    Attributes:
        model: Id of the model; without it, all models.
        accelerator: Kind of accelerator, whatever their number; without it, all kinds.
        iterations: True time of an iteration over that of the profile.
        swaps: True time of a model swap over that of the profile, whatever its tier.
    """

    model: str | None = None
    accelerator: str | None = Field(None, min_length=1, max_length=40)
    iterations: float = Field(1.0, ge=0.01, le=100)
    swaps: float = Field(1.0, ge=0.01, le=100)


class NetworkSection(Section):
    """Latencies between the parts.

    Attributes:
        store_ms: Round trip of a call of the store.
        broker_ms: Round trip of a publish with its confirm, or of a pull.
        notice_ms: Time from a change in the store to its notification.
    """

    store_ms: RoundTripMs = 1.0
    broker_ms: RoundTripMs = 2.0
    notice_ms: RoundTripMs = 1.0


class KillInstanceSection(Section):
    """Crash of an agent with its engine; both restart after `down_s`, without a loaded model.

    Attributes:
        at_s: When, from the start of the simulation.
        instance: Name of the instance.
        down_s: Time until both are back.
    """

    at_s: Seconds
    instance: str
    down_s: Duration


class KillEngineSection(Section):
    """Crash of an instance's awake engine; its agent restarts it.

    Attributes:
        at_s: When, from the start of the simulation.
        instance: Name of the instance.
    """

    at_s: Seconds
    instance: str


class SlowInstanceSection(Section):
    """Slowdown of an instance: for `for_s`, its engines take `factor` times as long.

    Attributes:
        at_s: When, from the start of the simulation.
        instance: Name of the instance.
        for_s: Duration.
        factor: Times as long as the profile says; below 1 is faster.
    """

    at_s: Seconds
    instance: str
    for_s: Duration
    factor: float = Field(gt=0, le=1000)


class OutageSection(Section):
    """Outage of a part, for `for_s`.

    Attributes:
        at_s: When, from the start of the simulation.
        for_s: Duration.
    """

    at_s: Seconds
    for_s: Duration


class FaultSection(Section):
    """A fault; exactly one of the keys.

    Faults of one kind that overlap (`slow_instance` and `kill_instance`: on one instance) do not add up: the
    end of the first ends them all.

    Attributes:
        kill_instance: An agent crashes with its engine; both are back later, cold.
        kill_engine: The awake engine crashes under its agent.
        slow_instance: Engines take longer for a while.
        pause_controller: Planning stops for a time.
        store_outage: The shared state cannot be reached.
        broker_outage: The global queue cannot be reached: nothing is accepted, pulled or acknowledged.
    """

    kill_instance: KillInstanceSection | None = None
    kill_engine: KillEngineSection | None = None
    slow_instance: SlowInstanceSection | None = None
    pause_controller: OutageSection | None = None
    store_outage: OutageSection | None = None
    broker_outage: OutageSection | None = None

    @model_validator(mode="after")
    def _one_fault(self) -> Self:
        self.one_of(*type(self).model_fields)
        return self

    @property
    def instance(self) -> str | None:
        """Affected instance; None if the fault affects another part."""
        section = getattr(self, self.one_of(*type(self).model_fields))
        return getattr(section, "instance", None)


class ControllerSection(Section):
    """Settings of the controller.

    Attributes:
        delta: Group size in average batches.
        group_requests_max: Largest group, whatever the batch size.
        linger_s: Time for which an empty group stays open for the next arrival.
        move_s: Smallest gain for which a group is moved, seconds.
        quiet_s: Longest time without planning; the controller plans then even without an event.
        min_interval_s: Shortest time between two plans.
    """

    delta: float = Field(4.0, gt=0, le=1000)
    group_requests_max: int = Field(1024, ge=1, le=1_000_000)
    linger_s: Seconds = 30.0
    move_s: Seconds = 1.0
    quiet_s: float = Field(0.5, gt=0, le=TIME_MAX_S)
    min_interval_s: Seconds = 0.01


class LimitsSection(Section):
    """Limits of the simulated system.

    Attributes:
        queue_depth_max: Largest number of waiting requests; further ones are refused.
        host_kv_gib: Host memory per instance for offloaded KV blocks.
        host_kv_write_through: KV blocks are copied there as soon as they are full; otherwise when a batch
            policy preempts their request, and they stay allocated until that has ended.
        host_kv_overlap: Copies to host memory and back run at the same time; otherwise one after the other.
        append_interval_ms: Time between two writes of a running request's tokens to the output log.
        horizon_s: Latest end of the simulation; requests that are unfinished then count as missed, and those
            that have not arrived do not count.
        warm_up_s: Time at the start whose requests are left out of attainment and latencies.
    """

    queue_depth_max: int = Field(1_000_000, ge=1, le=100_000_000)
    host_kv_gib: float = Field(0.0, ge=0, le=1_000_000)
    host_kv_write_through: bool = True
    host_kv_overlap: bool = True
    append_interval_ms: float = Field(1000.0, gt=0, le=3_600_000)
    horizon_s: Duration | None = None
    warm_up_s: Seconds = 0.0


Models = Annotated[tuple[ModelSection, ...], Field(min_length=1, max_length=MODELS_MAX)]
Instances = Annotated[tuple[InstanceSection, ...], Field(min_length=1, max_length=INSTANCES_MAX)]
