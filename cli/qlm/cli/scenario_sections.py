"""Sections of a scenario file: fleet, objectives, faults and limits. Streams are in scenario_streams."""

from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Self, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from qlm.cli.config import INSTANCES_MAX, MODELS_MAX, ModelName, Name
from qlm.cli.config_slo import SloConfig
from qlm.domain.slo import OnMiss
from qlm.simulator.workload.formats import ZeroOutput
from qlm.simulator.workload.reading import TraceFormat

TIME_MAX_S = 31_536_000.0
"""Longest simulated time, a year."""

Seconds = Annotated[float, Field(ge=0, le=TIME_MAX_S)]
Duration = Annotated[float, Field(gt=0, le=TIME_MAX_S)]
RoundTripMs = Annotated[float, Field(ge=0, le=60_000)]
CsvColumn = Literal["arrival_s", "model", "tenant", "slo_class", "input_tokens", "output_tokens"]


def no_truth(value: Any) -> Any:
    """Refuse true and false where a number is expected; Python would take them for 1 and 0.

    Raises:
        ValueError: It is one of them.
    """
    if isinstance(value, bool):
        raise ValueError(f"is {value}; expected a number")
    return value


def _is_number(kind: Any) -> bool:
    if get_origin(kind) in (Annotated, Union, UnionType):
        return any(_is_number(each) for each in get_args(kind))
    return kind in (int, float)


class Section(BaseModel):
    """Keys of one kind of section; others are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _numbers(cls, value: Any, info: ValidationInfo) -> Any:
        kind = cls.model_fields[str(info.field_name)].annotation
        return no_truth(value) if _is_number(kind) else value

    def one_of(self, *names: str) -> str:
        """Return which of some keys is given.

        Raises:
            ValueError: It is not exactly one.
        """
        given = [name for name in names if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"has {given or 'none'} of {list(names)}; expected exactly one")
        return given[0]


class ModelSection(Section):
    """A served model.

    Attributes:
        id: Its name.
        profile: Name of the model in the profiles; its own id if not given.
        context_tokens: Prompt plus output at most; if not given, what all its profiles allow.
    """

    id: ModelName
    profile: str | None = None
    context_tokens: int | None = Field(None, ge=2, le=100_000_000)


class InstanceSection(Section):
    """One LLM serving instance, or `count` equal ones.

    Attributes:
        id: Its name; with `count` the beginning of their names, followed by -0, -1, ...
        count: How many; if not given, one whose name is just `id`.
        accelerator: Kind of accelerator, as in the profiles.
        gpus: Accelerators that its engines span.
        models: Ids of models it may serve; the first is awake at the start.
        host_memory_gib: Memory for sleeping models, and for weights files read ahead of their model's turn.
        swap_tiers: In which models may sleep; without any, a model swap ends the engine of the old model.
    """

    id: Name
    count: int | None = Field(None, ge=1, le=INSTANCES_MAX)
    accelerator: str = Field(min_length=1, max_length=40)
    gpus: int = Field(1, ge=1, le=64)
    models: tuple[str, ...] = Field(min_length=1)
    host_memory_gib: float = Field(64.0, gt=0, le=1_000_000)
    swap_tiers: tuple[Literal["warm", "reload"], ...] = ("warm", "reload")

    @property
    def ids(self) -> tuple[str, ...]:
        """Names of its instances."""
        if self.count is None:
            return (self.id,)
        return tuple(f"{self.id}-{number}" for number in range(self.count))


class SloClassSection(SloConfig, Section):
    """An objective: a deadline, a first-token target with or without a pace, or none of them (batch).

    Attributes:
        priority: Of its requests; lower goes first.
        on_miss: Whether late requests are still served.
    """

    priority: int = Field(0, ge=-1000, le=1000)
    on_miss: OnMiss = OnMiss.SERVE


class TraceSection(Section):
    """A file with recorded requests.

    Attributes:
        path: The file; `${NAME}` in it is an environment variable.
        format: How it is written.
        columns: For csv, names of columns that differ from the usual ones.
        zero_output: What becomes of rows for which nothing was generated.
        tokenizer: For sharegpt, a tokenizer.json to count tokens with.
        from_s: Start of the part that is used.
        duration_s: Its length; if not given, all that is left.
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


class NetworkSection(Section):
    """Round trips between the parts.

    Attributes:
        store_ms: A step of the shared state.
        broker_ms: A publish with its confirm, or a pull.
        notice_ms: From a change to whoever is told of it.
    """

    store_ms: RoundTripMs = 1.0
    broker_ms: RoundTripMs = 2.0
    notice_ms: RoundTripMs = 1.0


class KillInstanceSection(Section):
    """The agent dies with its engine; both are back later, cold."""

    at_s: Seconds
    instance: str
    down_s: Duration


class KillEngineSection(Section):
    """The awake engine dies under its agent, which starts it again."""

    at_s: Seconds
    instance: str


class SlowInstanceSection(Section):
    """The engines of an instance take `factor` times as long, for a while."""

    at_s: Seconds
    instance: str
    for_s: Duration
    factor: float = Field(gt=0, le=1000)


class OutageSection(Section):
    """A part is away for a while."""

    at_s: Seconds
    for_s: Duration


class FaultSection(Section):
    """What goes wrong; exactly one of the keys."""

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
        """The instance it befalls, if it is one."""
        section = getattr(self, self.one_of(*type(self).model_fields))
        return getattr(section, "instance", None)


class ControllerSection(Section):
    """Settings of the controller.

    Attributes:
        delta: Group size in average batches.
        group_requests_max: Largest group whatever the batch size.
        linger_s: How long an empty group stays open for the next arrival.
        move_s: What moving a group must gain to be worth it.
        quiet_s: It plans this often even if nothing happens.
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
        queue_depth_max: Waiting requests beyond which new ones are refused.
        host_kv_gib: Host memory per instance to which KV blocks are offloaded.
        append_interval_ms: How often tokens in mid-answer are written to the output log.
        horizon_s: The simulation ends here at the latest; what is unfinished then counts as missed.
    """

    queue_depth_max: int = Field(1_000_000, ge=1, le=100_000_000)
    host_kv_gib: float = Field(0.0, ge=0, le=1_000_000)
    append_interval_ms: float = Field(1000.0, gt=0, le=3_600_000)
    horizon_s: Duration | None = None


Models = Annotated[tuple[ModelSection, ...], Field(min_length=1, max_length=MODELS_MAX)]
Instances = Annotated[tuple[InstanceSection, ...], Field(min_length=1, max_length=INSTANCES_MAX)]
