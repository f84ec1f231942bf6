"""One run of a cell, as one line of a file: a scenario under an arm, at a load, with a seed."""

import base64
import hashlib
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from benchmarks.motion.bound.upper_bound import upper_bound
from benchmarks.motion.static_placement import candidates, placed
from qlm.cli.scenario.workload import draw_scenario
from qlm.simulator.report import summary
from qlm.simulator.results import NEVER, SimulationResult
from qlm.simulator.rules import policy_named
from qlm.simulator.scenario import Scenario, Workload
from qlm.simulator.seeds import Seeds
from qlm.simulator.simulation import simulate

HINDSIGHT: Final = "static-hindsight"
"""Arm: the best candidate of `static_placement` under EDF with visits, chosen by its own result."""

UNDER_HINDSIGHT: Final = "edf+visits"

BOUND: Final = "bound"
"""Arm: no simulation, but the share of met objectives that no policy exceeds (`bound.upper_bound`)."""

REPORTED: Final = (HINDSIGHT, BOUND)
"""Arms that know all requests beforehand; they are reported, and are no rivals."""

Key = tuple[str, str, str, float, int]
"""Scenario, digest of its file, arm, load and seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Result of one simulation.

    Attributes:
        scenario: Name of the scenario.
        digest: Of the scenario file.
        arm: Policy, as `benchmarks.motion.arms` names it, or one of `REPORTED`.
        load: Relative to the best static placement.
        met: Bits of the requests in order of arrival, 1 for a met objective; packed, in base 64. Of `BOUND`,
            as many ones as it allows.
        served_rps: Answers per second up to the last arrival.
        late_p99_s: P99 of the time from arrival to the end, of late requests and those without objective;
            for unfinished ones, to the end of the simulation. None if there are none.
        swap_s: Time of instances without an awake model.
        processor_s: Processor time that the run took.
    """

    scenario: str
    digest: str
    arm: str
    load: float
    seed: int
    requests: int
    met: str
    attainment: float
    served_rps: float
    late_p99_s: float | None
    evictions: int
    swaps: int
    swap_s: float
    moves: int
    unfinished: int
    simulated_s: float
    processor_s: float

    @property
    def key(self) -> Key:
        """Identity of the run."""
        return (self.scenario, self.digest, self.arm, self.load, self.seed)

    @property
    def bits(self) -> npt.NDArray[np.bool_]:
        """Per request, in order of arrival, true if it met its objective."""
        packed = np.frombuffer(base64.b64decode(self.met), dtype=np.uint8)
        return np.unpackbits(packed, count=self.requests).astype(np.bool_)


def packed_bits(met: npt.NDArray[np.bool_]) -> str:
    """Return bits as `Run.met` has them."""
    return base64.b64encode(np.packbits(met).tobytes()).decode()


def digest_of(path: Path) -> str:
    """Return the digest of a scenario file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def run(path: Path, arm: str, load: float, seed: int) -> Run:
    """Simulate one cell under one arm."""
    began_s = time.process_time()
    scenario = draw_scenario(path, seed, load=load).scenario
    if arm == BOUND:
        return _bound(path, scenario, load, seed, began_s=began_s)
    result = _hindsight(scenario, seed) if arm == HINDSIGHT else _simulated(scenario, arm, seed)
    return _summed(path, arm, load, result, processor_s=time.process_time() - began_s)


def _bound(path: Path, scenario: Scenario, load: float, seed: int, *, began_s: float) -> Run:
    workload = scenario.make_workload(Seeds(seed))
    bound = upper_bound(scenario, workload)
    return Run(
        scenario=path.stem,
        digest=digest_of(path),
        arm=BOUND,
        load=load,
        seed=seed,
        requests=len(workload),
        met=packed_bits(np.arange(len(workload)) < round(bound * len(workload))),
        attainment=round(bound, 5),
        served_rps=0.0,
        late_p99_s=None,
        evictions=0,
        swaps=0,
        swap_s=0.0,
        moves=0,
        unfinished=0,
        simulated_s=0.0,
        processor_s=round(time.process_time() - began_s, 2),
    )


def _hindsight(scenario: Scenario, seed: int) -> SimulationResult:
    workload = scenario.make_workload(Seeds(seed))
    results = [
        _simulated(placed(scenario, each), UNDER_HINDSIGHT, seed) for each in candidates(scenario, workload)
    ]
    return max(results, key=lambda result: float(result.outcomes.met.mean()))


def _simulated(scenario: Scenario, arm: str, seed: int) -> SimulationResult:
    return simulate(scenario, policy_named(arm), seed, stopwatch_s=time.perf_counter)


def _summed(path: Path, arm: str, load: float, result: SimulationResult, *, processor_s: float) -> Run:
    total, outcomes = summary(result), result.outcomes
    late_p99_s = _late_p99_s(result)
    return Run(
        scenario=path.stem,
        digest=digest_of(path),
        arm=arm,
        load=load,
        seed=result.seed,
        requests=len(result.workload),
        met=packed_bits(outcomes.met),
        attainment=round(float(outcomes.met.mean()), 5),
        served_rps=round(_served_rps(result.workload, outcomes.ended_ns), 4),
        late_p99_s=None if late_p99_s is None else round(late_p99_s, 2),
        evictions=total["evictions"],
        swaps=total["swaps"],
        swap_s=round(total["swap_seconds"], 1),
        moves=total["moves"],
        unfinished=total["unfinished"],
        simulated_s=round(result.simulated_s, 1),
        processor_s=round(processor_s, 2),
    )


def _served_rps(workload: Workload, ended_ns: npt.NDArray[np.int64]) -> float:
    last_ns = int(workload.arrival_ns[-1])
    return int(((ended_ns != NEVER) & (ended_ns <= last_ns)).sum()) / max(last_ns / 1e9, 1e-9)


def _late_p99_s(result: SimulationResult) -> float | None:
    no_target = np.array([each.slo.target_ms is None for each in result.scenario.slo_classes])
    rows = no_target[result.workload.slo_class] | ~result.outcomes.met
    if not rows.any():
        return None
    ended_ns = result.outcomes.ended_ns
    end_ns = np.where(ended_ns == NEVER, round(result.simulated_s * 1e9), ended_ns)
    waited_s = np.maximum(0, end_ns - result.workload.arrival_ns)[rows] / 1e9
    return float(np.quantile(waited_s, 0.99))


def append(path: Path, one: Run) -> None:
    """Add a run to the file, as one line that is written at once; one that was cut off stays by itself."""
    path.parent.mkdir(parents=True, exist_ok=True)
    cut_off = path.exists() and not path.read_bytes().endswith(b"\n")
    with path.open("a", encoding="utf-8") as file:
        file.write("\n" * cut_off + json.dumps(asdict(one)) + "\n")


def read(path: Path) -> dict[Key, Run]:
    """Read the runs of a file; a line that was cut off is left out, and the last run of a key counts."""
    if not path.exists():
        return {}
    found = (_parsed(line) for line in path.read_text("utf-8").splitlines())
    return {one.key: one for one in found if one is not None}


def _parsed(line: str) -> Run | None:
    try:
        fields: Mapping[str, Any] = json.loads(line)
    except json.JSONDecodeError:
        return None
    return Run(**fields)


def missing(keys: Iterable[Key], known: Mapping[Key, Run]) -> list[Key]:
    """Return the keys without a run, in their order."""
    return [key for key in keys if key not in known]
