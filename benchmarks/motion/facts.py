"""Properties of scenarios, by which the benchmark of drawn scenarios shows where an arm gains or loses."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from qlm.cli.scenario.yaml import read_scenario_file
from qlm.simulator.workload.arrivals import ARRIVAL_MAX_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Properties of a scenario.

    Attributes:
        models: Number of models.
        instances: Number of instances.
        kinds: Number of kinds of instances.
        properties: Yes or no, by name.
    """

    models: int
    instances: int
    kinds: int
    properties: Mapping[str, bool]


def facts_of(path: Path) -> Facts:
    """Read a scenario file and return its properties."""
    file = read_scenario_file(path)
    instances = [name for section in file.instances for name in section.ids]
    kinds = {(section.accelerator, section.gpus) for section in file.instances}
    targets_s = [(each.slo().target_ms or ARRIVAL_MAX_S * 1e3) / 1e3 for each in file.slo_classes.values()]
    starts = {stream.name.rpartition("-")[2] for stream in file.workload if stream.name is not None}
    models, per_instance = len(file.models), len(file.models) / len(instances)
    processes = {name for stream in file.workload for name in stream.arrivals.model_fields_set}
    return Facts(
        models=models,
        instances=len(instances),
        kinds=len(kinds),
        properties={
            "no more models than instances": per_instance <= 1,
            "up to 3 models per instance": 1 < per_instance <= 3,
            "more than 3 models per instance": per_instance > 3,
            "one instance": len(instances) == 1,
            "5 instances or more": len(instances) >= 5,
            "several kinds of instances": len(kinds) > 1,
            "some objective up to 5 s": min(targets_s) <= 5,
            "all objectives over 20 s": min(targets_s) > 20,
            "batch work": max(targets_s) >= ARRIVAL_MAX_S,
            "popularity changes": "1" in starts,
            "a backlog at once": "backlog" in starts,
            "bursts": bool({"gamma", "on_off"} & processes),
            "wrong profiles": bool(file.profile_errors),
            "history": bool(file.history),
            "an instance leaves": any(fault.kill_instance is not None for fault in file.faults),
        },
    )
