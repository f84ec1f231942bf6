"""Reading of a scenario file: its base file, its paths, and its sections."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Self

from pydantic import Field, ValidationError, model_validator

from qlm.cli.config.errors import ConfigError, Steps, invalid_file
from qlm.cli.config.fleet import Name
from qlm.cli.config.yaml import read_mapping
from qlm.cli.scenario.sections import (
    ControllerSection,
    FaultSection,
    Instances,
    LimitsSection,
    Models,
    NetworkSection,
    ProfileErrorSection,
    Seconds,
    Section,
    SloClassSection,
    TraceSection,
)
from qlm.cli.scenario.streams import StreamSection

SLO_CLASSES_MAX: Final = 100
STREAMS_MAX: Final = 1000
FAULTS_MAX: Final = 10_000
ERRORS_MAX: Final = 10_000

_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class HistorySection(Section):
    """Requests before the simulation, which the controller has learned from.

    Attributes:
        workload: The requests, as streams.
        age_s: Time from the last of them to the start.
    """

    workload: Annotated[tuple[StreamSection, ...], Field(min_length=1, max_length=STREAMS_MAX)]
    age_s: Seconds = 0.0


class ScenarioFile(Section):
    """A whole scenario.

    Attributes:
        name: Name in reports; without it, that of the file.
        models: Served models.
        instances: LLM serving instances.
        slo_classes: Objectives by name.
        traces: Files with recorded requests, by name.
        workload: Streams of requests, which are merged.
        capacity_rps: Requests per second that load 1.0 stands for, if it was measured; the summary has
            it, too.
        profile_errors: Errors of the profiles.
        history: Requests before the simulation, which the controller has learned from.
        network: Latencies between the parts.
        faults: Faults with their times.
        controller: Settings of the controller.
        limits: Limits of the simulated system.
        profiles: Folders with further profile files.
    """

    name: Annotated[str, Field(min_length=1, max_length=100)]
    models: Models
    instances: Instances
    slo_classes: Annotated[Mapping[Name, SloClassSection], Field(min_length=1, max_length=SLO_CLASSES_MAX)]
    traces: Mapping[Name, TraceSection] = {}
    workload: Annotated[tuple[StreamSection, ...], Field(min_length=1, max_length=STREAMS_MAX)]
    capacity_rps: Annotated[float | None, Field(gt=0, le=1_000_000)] = None
    profile_errors: Annotated[tuple[ProfileErrorSection, ...], Field(max_length=ERRORS_MAX)] = ()
    history: HistorySection | None = None
    network: NetworkSection = NetworkSection()
    faults: Annotated[tuple[FaultSection, ...], Field(max_length=FAULTS_MAX)] = ()
    controller: ControllerSection = ControllerSection()
    limits: LimitsSection = LimitsSection()
    profiles: tuple[Path, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        models = [model.id for model in self.models]
        instances = [each for section in self.instances for each in section.ids]
        _once("models", models)
        _once("instances", instances)
        for index, section in enumerate(self.instances):
            _once(f"instances.{index}.models", list(section.models))
            for model in section.models:
                _known(f"instances.{index}.models", model, models)
        served = {model for section in self.instances for model in section.models}
        for model in models:
            if model not in served:
                raise ValueError(f"models has {model!r}; expected at least one instance that serves it")
        for index, fault in enumerate(self.faults):
            if fault.instance is not None:
                _known(f"faults.{index}", fault.instance, instances)
        self._check_streams("workload", self.workload, models)
        self._check_errors(models)
        if self.history is not None:
            self._check_streams("history.workload", self.history.workload, models)
        return self

    def _check_streams(self, key: str, streams: Sequence[StreamSection], models: list[str]) -> None:
        names = [name_of(index, stream) for index, stream in enumerate(streams)]
        _once(f"{key} names", names)
        for name, stream in zip(names, streams, strict=True):
            self._check_stream(f"{key}.{name}", stream, models)

    def _check_errors(self, models: list[str]) -> None:
        accelerators = sorted({section.accelerator for section in self.instances})
        for index, section in enumerate(self.profile_errors):
            _known(f"profile_errors.{index}.model", section.model, models)
            _known(f"profile_errors.{index}.accelerator", section.accelerator, accelerators)

    def _check_stream(self, key: str, stream: StreamSection, models: list[str]) -> None:
        traces = list(self.traces)
        _known(f"{key}.arrivals.trace", stream.arrivals.trace, traces)
        _known(f"{key}.lengths.trace", stream.lengths.trace, traces)
        _known(f"{key}.model", stream.model, models)
        targets = {model for model in (stream.models or {}).values() if model is not None}
        for model in sorted(targets):
            _known(f"{key}.models", model, models)
        if stream.model is None and stream.arrivals.trace is None and stream.lengths.trace is None:
            raise ValueError(f"{key}.models maps names of a trace; expected model, since nothing has a trace")
        for slo_class in sorted(stream.slo.classes()):
            _known(f"{key}.slo", slo_class, list(self.slo_classes))
        if stream.slo.by_model is not None:
            wanted, given = sorted(targets or {str(stream.model)}), sorted(stream.slo.by_model)
            if wanted != given:
                raise ValueError(
                    f"{key}.slo.by_model has {given}; expected just the models of the stream, {wanted}"
                )


def name_of(index: int, stream: StreamSection) -> str:
    """Return the name of a stream."""
    return stream.name or str(index)


def read_scenario_file(path: Path, environment: Mapping[str, str] = os.environ) -> ScenarioFile:
    """Read and check a scenario file, and the file it is based on.

    Args:
        path: The file.
        environment: Environment variables for its paths.

    Raises:
        ConfigError: One message with file, key, value and expectation.
    """

    def filled(key: str, text: str) -> str:
        for name in _VARIABLE.findall(text):
            if not environment.get(name):
                expected = f"the environment variable {name} to be set to a folder"
                raise ConfigError(f"{path}: {key} is {text!r}; expected {expected}")
        return _VARIABLE.sub(lambda match: environment[match[1]], text)

    raw = _raw(path)
    base = raw.pop("base", None)
    if base is not None:
        raw = _merged(_base(path, base, filled), raw)
    filled_in = {"name": path.stem, **_with_paths(raw, filled)}
    try:
        return ScenarioFile.model_validate(filled_in)
    except ValidationError as error:
        by_name = partial(_by_name, filled_in)
        raise invalid_file(str(path), error, ScenarioFile, by_name, whole="") from error


def _by_name(raw: Mapping[str, Any], steps: Steps) -> Steps:
    """Replace the index of a stream by its name, if it has one."""
    if len(steps) < 2 or steps[0] not in ("workload", "history") or not isinstance(steps[1], int):
        return steps
    stream = raw[steps[0]][steps[1]]
    name = stream.get("name") if isinstance(stream, Mapping) else None
    return (steps[0], name, *steps[2:]) if isinstance(name, str) and name else steps


def _base(path: Path, base: object, filled: Callable[[str, str], str]) -> dict[str, Any]:
    if not isinstance(base, str):
        raise ConfigError(f"{path}: base is {base!r}; expected the path of a scenario file")
    under = _raw(Path(filled("base", _beside(path, base))))
    if "base" in under:
        expected = "a scenario without a base of its own"
        raise ConfigError(f"{path}: base is {base!r}, based on {under['base']!r}; expected {expected}")
    return under


def _raw(path: Path) -> dict[str, Any]:
    """Read a file, and resolve its paths against its folder."""
    raw = read_mapping(path, "models, instances, slo_classes and workload")
    return _with_paths(raw, lambda key, text: _beside(path, text))


def _beside(path: Path, text: str) -> str:
    """Resolve a path against the folder of a file, unless it begins with a variable."""
    return text if text.startswith("$") else str(path.parent / text)


def _with_paths(raw: Mapping[str, Any], change: Callable[[str, str], str]) -> dict[str, Any]:
    """Change the paths of traces, tokenizers, models and profile folders; validation refuses other types."""
    changed, traces, profiles, models = dict(raw), *(raw.get(k) for k in ("traces", "profiles", "models"))
    if isinstance(traces, Mapping):
        changed["traces"] = {
            name: _entry_with_paths(f"traces.{name}", trace, ("path", "tokenizer"), change)
            for name, trace in traces.items()
        }
    if isinstance(profiles, list):
        changed["profiles"] = [
            change(f"profiles.{index}", each) if isinstance(each, str) else each
            for index, each in enumerate(profiles)
        ]
    if isinstance(models, list):
        changed["models"] = [
            _entry_with_paths(f"models.{index}", each, ("config",), change)
            for index, each in enumerate(models)
        ]
    return changed


def _entry_with_paths(key: str, entry: Any, names: Sequence[str], change: Callable[[str, str], str]) -> Any:
    if not isinstance(entry, Mapping):
        return entry
    return {
        name: change(f"{key}.{name}", value) if name in names and isinstance(value, str) else value
        for name, value in entry.items()
    }


def _merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(under)
    for key, value in over.items():
        inner = merged.get(key)
        if isinstance(inner, Mapping) and isinstance(value, Mapping):
            merged[key] = _merged(inner, value)
        else:
            merged[key] = value
    return merged


def _once(what: str, names: list[str]) -> None:
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{what} has {twice!r} twice; expected each once")


def _known(key: str, name: str | None, known: list[str]) -> None:
    if name is not None and name not in known:
        shown = ", ".join(known[:20]) + (", ..." if len(known) > 20 else "")
        raise ValueError(f"{key} has {name!r}; expected one of {shown or 'none: there are none'}")
