"""Proofs of the exact planner and their times: `python -m benchmarks.planner_exact`.

Random problems of classes as in production: a class is a model and an objective, its groups take equally long
and differ in size and deadline; two kinds of instances, one about twice as fast as the other; swaps of
seconds (warm) and half a minute (cold). Half of the problems are overloaded: the fleet needs 1.4 times as
long as the deadlines allow, against 0.7 times.
"""

import argparse
import random
import statistics
from dataclasses import dataclass

from benchmarks.planner_timing import timed
from benchmarks.setups import machine
from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.planner.exact.scenarios import Scenarios, draw_scenarios
from qlm.planner.exact.solve import solve_on
from qlm.planner.problem import GroupTime, Instance, Kind, ModelCost, PlannedGroup, Problem
from qlm.planner.verify.referee import verify
from qlm.rct_estimator.normal import Normal
from support.position_form.solve import solve_positions

SPEED = {"a100": 1.0, "a10": 2.2}
LOADS = (0.7, 1.4)
SPREAD = 0.1
"""Standard deviation of a group's times over their mean."""

PER_REQUEST_S = (0.05, 0.4)
TAIL_S = (4.0, 20.0)
REQUESTS = (20, 250)


@dataclass(frozen=True, slots=True)
class Row:
    """One solved problem."""

    proven: bool
    took_s: float
    worse: float
    """How much more the plan is expected to cost than the best plan of the problem, as a share."""


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, nargs="+", default=[6, 7, 8, 9, 10, 12])
    parser.add_argument("--problems", type=int, default=12, help="per number of groups")
    parser.add_argument("--scenarios", type=int, nargs="*", default=[20, 200], help="beside the expectation")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds per problem")
    parser.add_argument("--positions", type=int, nargs="*", default=[3, 4, 5], help="groups; 5 scenarios")
    options = parser.parse_args()
    print(f"machine: {machine()}\n")
    solve_on(production_problem(3, 0), None)  # compiles
    print("form       scenarios  groups  proven      median s   P90 s   max s   worse (mean, max)")
    for groups in options.groups:
        problems = [production_problem(groups, seed) for seed in range(options.problems)]
        best = [expected_s(problem, options.time_limit) for problem in problems]
        for count in (None, *options.scenarios):
            rows = [
                measure(problem, drawn_from(problem, count, seed), best_s, options.time_limit)
                for seed, (problem, best_s) in enumerate(zip(problems, best, strict=True))
            ]
            show("patterns", count, groups, rows)
    for groups in options.positions:
        problems = [production_problem(groups, seed, requests=(1, 6)) for seed in range(options.problems)]
        rows = [measure_positions(p, seed, options.time_limit) for seed, p in enumerate(problems)]
        show("positions", 5, groups, rows)
    return 0


def expected_s(problem: Problem, limit_s: float) -> float | None:
    """Expected penalty of the best plan; None if it is not proven."""
    answer = solve_on(problem, None, time_limit_s=limit_s)
    return answer.penalty_s if answer.proven else None


def drawn_from(problem: Problem, scenarios: int | None, seed: int) -> Scenarios | None:
    """Draw the scenarios; None for the expectation."""
    return None if scenarios is None else draw_scenarios(problem, scenarios=scenarios, seed=seed)


def measure(problem: Problem, drawn: Scenarios | None, best_s: float | None, limit_s: float) -> Row:
    """Solve one problem by patterns, and price its plan by the closed form."""
    answer, took = timed(lambda: solve_on(problem, drawn, time_limit_s=limit_s))
    if best_s is None:
        return Row(answer.proven, took.wall_s, 0.0)
    least_s = max(best_s, float(sum(group.requests for group in problem.groups)))
    return Row(answer.proven, took.wall_s, (verify(problem, answer.plan).penalty_s - best_s) / least_s)


def measure_positions(problem: Problem, seed: int, limit_s: float) -> Row:
    """Solve one problem in the position form, on 5 scenarios."""
    drawn = draw_scenarios(problem, scenarios=5, seed=seed)
    answer, took = timed(lambda: solve_positions(problem, drawn, time_limit_s=limit_s))
    return Row(answer.proven, took.wall_s, 0.0)


def show(form: str, scenarios: int | None, groups: int, rows: list[Row]) -> None:
    """Print one line of the table."""
    took = sorted(row.took_s for row in rows)
    worse = [row.worse for row in rows]
    proven = sum(row.proven for row in rows)
    print(
        f"{form:10} {scenarios or 'expected':>9} {groups:7} {proven:4} of {len(rows):<3} "
        f"{statistics.median(took):10.2f} {took[int(0.9 * (len(took) - 1))]:7.2f} {took[-1]:7.2f}"
        f"   {statistics.mean(worse):.2%}, {max(worse):.2%}",
        flush=True,
    )


def production_problem(groups: int, seed: int, *, requests: tuple[int, int] = REQUESTS) -> Problem:
    """`groups` groups on two or three instances with as many models; odd seeds are overloaded."""
    rng = random.Random(seed * 1000 + groups)
    size = 2 + seed // 2 % 2
    models = [ModelId(f"model-{m}") for m in range(size)]
    costs = {m: _cost(rng) for m in models}
    kinds = {kind: Kind(host_memory_bytes=100, models=costs) for kind in SPEED}
    classes = [
        (rng.choice(models), rng.uniform(*PER_REQUEST_S), rng.uniform(*TAIL_S)) for _ in range(size + 2)
    ]
    chosen = [(rng.choice(classes), rng.randint(*requests)) for _ in range(groups)]
    instances = [_instance(f"i{i}", models, rng) for i in range(size)]
    speed = sum(1.0 / SPEED[instance.kind] for instance in instances)
    work_s = sum(count * each_s * REQUESTS[1] / requests[1] for (_, each_s, _), count in chosen)
    horizon_s = work_s / speed / LOADS[seed % 2]
    return Problem(
        now_s=0.0,
        kinds=kinds,
        instances=tuple(instances),
        groups=tuple(
            _group(f"g{g:02}", *cls, count, requests[1], horizon_s, rng)
            for g, (cls, count) in enumerate(chosen)
        ),
    )


def _cost(rng: random.Random) -> ModelCost:
    warm_s, cold_s = rng.uniform(1.0, 4.0), rng.uniform(15.0, 40.0)
    return ModelCost(weights_bytes=1, swap_warm_s=warm_s, swap_cold_s=cold_s, unload_s=0.5)


def _instance(name: str, models: list[ModelId], rng: random.Random) -> Instance:
    busy_s = rng.uniform(0.0, 10.0)
    return Instance(
        id=InstanceId(name),
        kind=rng.choice(sorted(SPEED)),
        loaded_model=rng.choice(models),
        warm_models=tuple(m for m in models if rng.random() < 0.5),
        busy=Normal(busy_s, (SPREAD * busy_s) ** 2),
    )


def _group(
    name: str,
    model: ModelId,
    each_s: float,
    tail_s: float,
    count: int,
    most: int,
    horizon_s: float,
    rng: random.Random,
) -> PlannedGroup:
    service_s = count * each_s * REQUESTS[1] / most
    times = {
        kind: GroupTime(
            service=Normal(service_s * slow, (SPREAD * service_s * slow) ** 2),
            tail=Normal(tail_s * slow, (SPREAD * tail_s * slow) ** 2),
        )
        for kind, slow in SPEED.items()
    }
    due_s = rng.choice([0.3, 0.6, 1.0]) * horizon_s + rng.uniform(0.0, 0.2) * horizon_s + 2 * tail_s
    return PlannedGroup(id=GroupId(name), model=model, requests=count, deadline_s=due_s, time=times)


if __name__ == "__main__":
    raise SystemExit(main())
