"""The requests of a scenario file, drawn for one seed before anything is simulated or written."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from qlm.cli.config_errors import ConfigError
from qlm.cli.scenario_file import load_scenario
from qlm.domain.errors import InvalidValueError
from qlm.simulator.scenario import Scenario
from qlm.simulator.seeds import Seeds
from qlm.simulator.workload.maker import WorkloadMaker
from qlm.simulator.workload.stream import StreamCounts

_SAID: Final = {
    "zero_output_dropped": "rows without output dropped",
    "left_out": "rows of other models left out",
    "prompts_cut": "prompts cut",
    "outputs_cut": "answers cut",
    "over_context_dropped": "requests over the context dropped",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnScenario:
    """A scenario whose requests are those of one seed.

    Attributes:
        scenario: The scenario; it makes these requests and no others.
        streams: What became of each stream.
    """

    scenario: Scenario
    streams: tuple[StreamCounts, ...]


def draw_scenario(path: Path, seed: int, *, load: float = 1.0) -> DrawnScenario:
    """Read a scenario file and draw its requests.

    Args:
        path: The file.
        seed: Of all randomness.
        load: By what all arrival rates are multiplied.

    Raises:
        ConfigError: One message with file, key (or line), value and expectation; also if there are no
            requests, too many, or some that come too late.
    """
    scenario = load_scenario(path, load=load)
    maker = scenario.make_workload
    assert isinstance(maker, WorkloadMaker)
    try:
        workload, streams = maker.draw(Seeds(seed))
    except InvalidValueError as error:
        raise ConfigError(f"{path}: {error}") from error
    if not len(workload):
        why = "; ".join(told(streams))
        raise ConfigError(
            f"{path}: workload draws no request with seed {seed} and load {load:g}"
            f"{f' ({why})' if why else ''}; expected at least one"
        )
    # Drawn once: what is simulated is what was counted.
    return DrawnScenario(scenario=replace(scenario, make_workload=lambda seeds: workload), streams=streams)


def told(streams: tuple[StreamCounts, ...]) -> list[str]:
    """Say what was cut, dropped and left out, one line per stream that lost anything."""
    lines = []
    for stream in streams:
        counts = asdict(stream)
        lost = [f"{counts[name]} {said}" for name, said in _SAID.items() if counts[name]]
        if lost:
            lines.append(f"stream {stream.name}: {', '.join(lost)}")
    return lines
