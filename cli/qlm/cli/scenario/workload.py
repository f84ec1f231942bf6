"""Draws the requests of a scenario file for one seed, before a simulation starts or writes files."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from qlm.cli.config.errors import ConfigError
from qlm.cli.scenario.file import load_scenario
from qlm.domain.errors import InvalidValueError
from qlm.simulator.scenario import PastTraffic, Scenario
from qlm.simulator.seeds import Seeds
from qlm.simulator.workload.maker import WorkloadMaker
from qlm.simulator.workload.stream import StreamCounts

_LOSSES: Final = {
    "zero_output_dropped": "rows without output dropped",
    "left_out": "rows of other models left out",
    "prompts_cut": "prompts cut",
    "outputs_cut": "answers cut",
    "over_context_dropped": "requests over the context dropped",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnScenario:
    """A scenario with the requests of one seed, and counts of requests that each stream cut or dropped."""

    scenario: Scenario
    streams: tuple[StreamCounts, ...]


def draw_scenario(path: Path, seed: int, *, load: float = 1.0) -> DrawnScenario:
    """Read a scenario file and draw its requests.

    Args:
        path: The file.
        seed: Seed of all randomness.
        load: Factor on all arrival rates.

    Raises:
        ConfigError: One message with file, key (or line), value and expectation; also for no requests, too
            many, or requests that arrive too late.
    """
    scenario = load_scenario(path, load=load)
    maker = scenario.make_workload
    assert isinstance(maker, WorkloadMaker)
    try:
        workload, streams = maker.draw(Seeds(seed))
        past = None if scenario.past is None else _drawn(scenario.past, seed)
    except InvalidValueError as error:
        raise ConfigError(f"{path}: {error}") from error
    if not len(workload):
        why = "; ".join(stream_lines(streams))
        raise ConfigError(
            f"{path}: workload draws no request with seed {seed} and load {load:g}"
            f"{f' ({why})' if why else ''}; expected at least one"
        )
    # Draw once, so that the simulated requests are the counted ones.
    drawn = replace(scenario, make_workload=lambda seeds: workload, past=past)
    return DrawnScenario(scenario=drawn, streams=streams)


def _drawn(past: PastTraffic, seed: int) -> PastTraffic:
    workload = past.make_workload(Seeds(seed))
    return replace(past, make_workload=lambda seeds: workload)


def stream_lines(streams: tuple[StreamCounts, ...]) -> list[str]:
    """Describe the requests that were cut, dropped or left out, one line per affected stream."""
    lines = []
    for stream in streams:
        counts = asdict(stream)
        lost = [f"{counts[name]} {words}" for name, words in _LOSSES.items() if counts[name]]
        if lost:
            lines.append(f"stream {stream.name}: {', '.join(lost)}")
    return lines
