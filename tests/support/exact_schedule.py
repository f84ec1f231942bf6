"""The most requests of a tiny scenario that meet their objectives, by trying every schedule.

An instance has one model awake. It runs an iteration of some requests of this model, swaps to another model,
or waits for the next arrival. Prompts are computed whole. A first start finds weights in host memory from the
time on at which a prefetch from the very beginning would have ended; later swaps are warm. Requests are
divided among the instances in every way.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, product

from qlm.domain.ids import ModelId
from qlm.domain.slo import BatchSlo, DeadlineSlo, TokenSlo
from qlm.rct_estimator.profiles.profile import Profile
from qlm.simulator.scenario import Scenario, SimulatedInstance, Workload

LOST = -1


@dataclass(frozen=True)
class Job:
    """A request: first output due by `first_s` if it has such an objective, all `outputs` by `last_s`."""

    model: ModelId
    begin_s: float
    first_s: float
    last_s: float
    prompt: int
    outputs: int


@dataclass(frozen=True)
class State:
    """Of one instance: `done` has the outputs of each job, or LOST."""

    at_s: float
    awake: ModelId
    started: frozenset[ModelId]
    done: tuple[int, ...]


def most_met(scenario: Scenario, workload: Workload) -> int:
    """Return the number of met objectives of the best schedule; batch work counts as met."""
    jobs = [job for job in (_job(scenario, workload, r) for r in range(len(workload))) if job is not None]
    places = range(len(scenario.instances))
    best = {
        (n, chosen): _best(scenario, each, [jobs[j] for j in chosen])
        for n, each in enumerate(scenario.instances)
        for size in range(len(jobs) + 1)
        for chosen in combinations(range(len(jobs)), size)
    }
    most = 0
    for placed in product(places, repeat=len(jobs)):
        parts = [tuple(j for j, place in enumerate(placed) if place == n) for n in places]
        most = max(most, sum(best[n, part] for n, part in enumerate(parts)))
    return most + len(workload) - len(jobs)


def _job(scenario: Scenario, workload: Workload, r: int) -> Job | None:
    slo, model = scenario.slo_classes[int(workload.slo_class[r])].slo, int(workload.model[r])
    arrival_s = float(workload.arrival_ns[r]) / 1e9
    outputs = int(min(workload.output_tokens[r], workload.max_tokens[r]))
    match slo:
        case BatchSlo():
            return None
        case DeadlineSlo(deadline_ms=deadline_ms):
            first_s, last_s = float("inf"), deadline_ms / 1e3
        case TokenSlo(ttft_ms=ttft_ms, tpot_ms=None):
            first_s, last_s, outputs = float("inf"), ttft_ms / 1e3, 1
        case _:
            raise AssertionError(slo)
    return Job(
        scenario.models[model].id,
        arrival_s,
        arrival_s + first_s,
        arrival_s + last_s,
        int(workload.prompt_tokens[r]),
        outputs,
    )


def _best(scenario: Scenario, instance: SimulatedInstance, jobs: Sequence[Job]) -> int:
    """Return the most of these jobs that one instance serves in time."""
    profiles = {model: scenario.true_profile(model, instance.kind) for model in instance.models}

    @cache
    def most(state: State) -> int:
        done = tuple(
            LOST if n < job.outputs and state.at_s >= job.last_s else n
            for n, job in zip(state.done, jobs, strict=True)
        )
        state = State(state.at_s, state.awake, state.started, done)
        met = sum(n == job.outputs for n, job in zip(done, jobs, strict=True))
        open_ = [j for j, job in enumerate(jobs) if LOST < done[j] < job.outputs]
        found = met
        for after in _steps(state, jobs, open_, profiles):
            if found == met + len(open_):
                break
            found = max(found, most(after))
        return found

    first = instance.models[0]
    return most(State(0.0, first, frozenset({first}), (0,) * len(jobs)))


def _steps(
    state: State, jobs: Sequence[Job], open_: Sequence[int], profiles: Mapping[ModelId, Profile]
) -> list[State]:
    """Return the states that may follow."""
    profile = profiles[state.awake]
    ready = [j for j in open_ if jobs[j].model == state.awake and jobs[j].begin_s <= state.at_s]
    after = [
        _iterated(state, jobs, batch, profile)
        for size in range(min(len(ready), profile.seqs_max), 0, -1)
        for batch in combinations(ready, size)
        if _fits(state, jobs, batch, profile)
    ]
    others = sorted({jobs[j].model for j in open_} - {state.awake})
    after += [_swapped(state, model, profiles) for model in others]
    later_s = [jobs[j].begin_s for j in open_ if jobs[j].begin_s > state.at_s]
    if later_s:
        after.append(State(min(later_s), state.awake, state.started, state.done))
    return after


def _fits(state: State, jobs: Sequence[Job], batch: Sequence[int], profile: Profile) -> bool:
    tokens = sum(1 if state.done[j] else jobs[j].prompt for j in batch)
    cached = sum(jobs[j].prompt + state.done[j] for j in batch)
    return tokens <= profile.batched_tokens_max and cached <= profile.kv_tokens


def _iterated(state: State, jobs: Sequence[Job], batch: Sequence[int], profile: Profile) -> State:
    prompts = [jobs[j].prompt for j in batch if not state.done[j]]
    decodes = [jobs[j].prompt + state.done[j] for j in batch if state.done[j]]
    lasts_ms = profile.iteration.ms(
        tokens=sum(prompts) + len(decodes),
        context_tokens=sum(decodes),
        sequences=len(batch),
        pairs=sum(tokens**2 / 2 for tokens in prompts),
        mixed=bool(prompts),
    )
    end_s, done = state.at_s + lasts_ms / 1e3, list(state.done)
    for j in batch:
        done[j] += 1
        late = end_s > jobs[j].last_s or (done[j] == 1 and end_s > jobs[j].first_s)
        done[j] = LOST if late else done[j]
    return State(end_s, state.awake, state.started, tuple(done))


def _swapped(state: State, model: ModelId, profiles: Mapping[ModelId, Profile]) -> State:
    asleep_s, of = state.at_s + profiles[state.awake].unload_s, profiles[model]
    if model in state.started:
        up_s = asleep_s + min(of.swap_warm_s, of.swap_reload_s)
    else:
        fetched_s = of.swap_cold_s - max(0.0, of.swap_reload_s - of.swap_warm_s)
        up_s = min(asleep_s + of.swap_cold_s, max(asleep_s, of.swap_reload_s) + fetched_s)
    return State(up_s, model, state.started | {model}, state.done)
