"""The planning problem of a busy controller, and what becomes of it later; see `planner_problems`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.planner.problem import GroupTime, Instance, Kind, ModelCost, Plan, PlannedGroup, Problem
from qlm.rct_estimator.normal import NOTHING, Normal
from qlm.rct_estimator.profiles.builtin import builtin_profiles, find_profile
from qlm.rct_estimator.profiles.profile import Profile
from qlm.rct_estimator.throughput import SteadyState, steady_state
from qlm.rct_estimator.workload import Workload

NOW_S = 1000.0
"""The present in all these problems: deadlines are not relative to 0 by accident."""

HOST_MEMORY_BYTES = 512 * 10**9

UNCERTAINTY = 0.05
"""Relative standard deviation of a live class's mean length around its estimate."""

SPEED_UNCERTAINTY = 0.03
"""Relative standard deviation of an instance's speed around its estimate, where errors are shared."""

INTERACTIVE_S = (5.0, 20.0)
"""Deadlines of live interactive groups, from now."""

DEADLINE_FROM_S = 45.0
"""Earliest deadline of live groups of the middle class, from now."""

SIZES = {"interactive": 100, "deadline": 250, "batch": 400}
"""Mean requests of a live group, by class; the average of the three is 250."""

TOKENS = {"interactive": (250.0, 100.0), "deadline": (400.0, 180.0), "batch": (600.0, 300.0)}
"""Mean prompt and answer of the live classes."""

BASES = ("mistral-7b", "llama-3-8b", "mistral-7b", "vicuna-13b")
"""Profiles behind the live models, in turn: the 13B one fits the A100 only."""

PROFILES = builtin_profiles()


@dataclass(frozen=True, slots=True)
class Form:
    """Times of n requests of a class on a kind."""

    each_s: float
    own_var: float
    common_var: float
    tail: Normal

    def time(self, n: int) -> GroupTime:
        return GroupTime(
            service=Normal(n * self.each_s, n * self.own_var + n * n * self.common_var), tail=self.tail
        )

    def sharing(self, n: int) -> GroupTime:
        """Return the times with the errors of class and speed as shared ones."""
        return GroupTime(
            service=Normal(n * self.each_s, n * self.own_var),
            tail=self.tail,
            class_sd_s=n * self.common_var**0.5,
            speed_sd_s=SPEED_UNCERTAINTY * n * self.each_s,
            tail_speed_sd_s=SPEED_UNCERTAINTY * self.tail.mean,
        )


def live(
    seed: int,
    groups: int = 1600,
    instances: int = 100,
    models: int = 12,
    load: float = 1.2,
    *,
    shared: bool = False,
) -> Problem:
    """Draw the problem of a busy controller: half A10, half A100, three classes of objectives.

    Each model is one of the shipped profiles (`BASES`). A third of the groups is interactive (deadlines
    in 5 to 20 s), a third has deadlines of minutes, a third has none. Their sizes sum up to 250 requests
    per group. Load is the least time in which the fleet could do all work due by some moment, without
    swaps and with groups split at will, over the time until then: it is `load` at 20 s and at the last
    deadline of the middle class.

    Args:
        seed: Of the draw.
        groups: Number of groups.
        instances: Number of instances.
        models: Number of models.
        load: As above.
        shared: Groups of a class share the error of its mean length, and all on an instance that of its
            speed; else each group has an error of its own.
    """
    rng = np.random.default_rng([seed, groups, instances, models])
    names = [ModelId(f"m{at:02d}") for at in range(models)]
    profiles = {
        kind: {
            m: p for at, m in enumerate(names) if (p := _profile(BASES[at % len(BASES)], kind)) is not None
        }
        for kind in ("A10", "A100")
    }
    kinds = {kind: _live_kind(of_kind) for kind, of_kind in profiles.items()}
    fleet = _live_fleet(rng, instances, kinds)
    share = rng.dirichlet(np.full(models, 4.0))
    slo = [list(SIZES)[at % len(SIZES)] for at in range(groups)]
    forms = {(m, c): _forms(profiles, m, c) for m in names for c in SIZES}
    model = [names[int(at)] for at in rng.choice(models, size=groups, p=share)]
    classes = list(zip(model, slo, strict=True))
    size = _live_sizes(rng, classes, forms, fleet, load)
    times: dict[tuple[ModelId, str, int], dict[str, GroupTime]] = {}
    for cls, n in zip(classes, size, strict=True):
        times.setdefault(
            (*cls, n),
            {kind: form.sharing(n) if shared else form.time(n) for kind, form in forms[cls].items()},
        )
    drafts = [
        PlannedGroup(
            id=GroupId(f"g{at:04d}"),
            model=m,
            requests=n,
            deadline_s=None,
            time=times[m, c, n],
            cls=f"{m}.{c}" if shared else None,
        )
        for at, ((m, c), n) in enumerate(zip(classes, size, strict=True))
    ]
    due = [g for g, c in zip(drafts, slo, strict=True) if c != "batch"]
    last_s = max(_least_s(due, fleet) / load, DEADLINE_FROM_S + 1)
    spans = {"interactive": INTERACTIVE_S, "deadline": (DEADLINE_FROM_S, last_s)}
    dated = [
        replace(g, deadline_s=NOW_S + float(rng.uniform(*spans[c]))) if c in spans else g
        for g, c in zip(drafts, slo, strict=True)
    ]
    order = rng.permutation(groups)
    return Problem(
        now_s=NOW_S, kinds=kinds, instances=fleet, groups=tuple(dated[at] for at in order), move_s=5.0
    )


def changed(
    problem: Problem, plan: Plan, seed: int, share: float = 0.01, *, elapsed_s: float = 1.0
) -> Problem:
    """Return the problem a moment after it was planned: the plan is what is queued, and some groups are new.

    Instances have worked on their queues for `elapsed_s` by mean times: what they served is gone, what
    they swap or serve is loaded. A share of the groups left is replaced by new ones of the same classes,
    which have the same time to their deadlines as those had at first and stand in no queue yet.

    Args:
        problem: As it was planned.
        plan: For it.
        seed: Of the draw.
        share: Of the groups that are replaced, at least one.
        elapsed_s: Since then.
    """
    rng = np.random.default_rng([seed, len(problem.groups)])
    groups = {group.id: group for group in problem.groups}
    fleet = [_worked(problem, i, plan.queues.get(i.id, ()), groups, elapsed_s) for i in problem.instances]
    left = sorted(groups)
    count = min(len(left), max(1, round(share * len(left))))
    gone = {left[at] for at in rng.choice(len(left), size=count, replace=False)}
    new = []
    for at, id in enumerate(sorted(gone)):
        old = groups[id]
        deadline_s = None if old.deadline_s is None else old.deadline_s + elapsed_s
        new.append(replace(old, id=GroupId(f"n{seed:03d}-{at:04d}"), deadline_s=deadline_s))
    return replace(
        problem,
        now_s=problem.now_s + elapsed_s,
        instances=tuple(replace(i, queue=tuple(g for g in i.queue if g not in gone)) for i in fleet),
        groups=tuple([*(groups[id] for id in left if id not in gone), *new]),
    )


def _profile(base: str, accelerator: str) -> Profile | None:
    known = {(p.model, p.accelerator, p.gpus) for p in PROFILES}
    return find_profile(PROFILES, base, accelerator) if (base, accelerator, 1) in known else None


def _live_kind(profiles: Mapping[ModelId, Profile]) -> Kind:
    models = {
        m: ModelCost(
            weights_bytes=p.weights_bytes,
            swap_warm_s=p.swap_warm_s,
            swap_cold_s=p.swap_cold_s,
            unload_s=p.unload_s,
        )
        for m, p in profiles.items()
    }
    return Kind(host_memory_bytes=HOST_MEMORY_BYTES, models=models)


def _live_fleet(rng: np.random.Generator, count: int, kinds: Mapping[str, Kind]) -> tuple[Instance, ...]:
    """Each instance serves something and is busy for up to 3 s; half of the other models are warm."""
    fleet = []
    for at in range(count):
        kind = "A10" if at % 2 == 0 else "A100"
        runs = sorted(kinds[kind].models)
        loaded = runs[int(rng.integers(len(runs)))]
        busy_s = float(rng.uniform(0, 3))
        fleet.append(
            Instance(
                id=InstanceId(f"{kind.lower()}-{at:03d}"),
                kind=kind,
                loaded_model=loaded,
                warm_models=tuple(m for m in runs if m != loaded and rng.random() < 0.5),
                busy=Normal(busy_s, (0.3 * busy_s) ** 2),
            )
        )
    return tuple(fleet)


def _forms(profiles: Mapping[str, Mapping[ModelId, Profile]], model: ModelId, slo: str) -> dict[str, Form]:
    """Return the estimated times of a class whose answers vary by 0.8 of their mean."""
    prompt, answer = TOKENS[slo]
    workload = Workload(
        prompt_tokens=prompt,
        output=Normal(answer, (0.8 * answer) ** 2),
        mean_var=(UNCERTAINTY * answer) ** 2,
        prompt_var=(0.5 * prompt) ** 2,
    )
    states = {k: steady_state(p[model], workload) for k, p in profiles.items() if model in p}
    return {kind: _form(state, first_token=slo == "interactive") for kind, state in states.items()}


def _form(state: SteadyState, *, first_token: bool) -> Form:
    decode_s = state.request_s - state.prompt_s
    tail = Normal(state.prefill_s, (0.2 * state.prefill_s) ** 2) if first_token else state.service
    return Form(
        each_s=state.request_s,
        own_var=decode_s**2 * state.work_cv2 + state.prompt_s**2 * state.prompt_cv2,
        common_var=(decode_s * state.work_uncertainty) ** 2,
        tail=tail,
    )


def _live_sizes(
    rng: np.random.Generator,
    classes: Sequence[tuple[ModelId, str]],
    forms: Mapping[tuple[ModelId, str], Mapping[str, Form]],
    fleet: Sequence[Instance],
    load: float,
) -> list[int]:
    """Requests per group, 250 on average; interactive ones are scaled to `load` at 20 s."""
    draws = [SIZES[c] * float(rng.uniform(0.5, 1.5)) for _, c in classes]
    total = round(sum(SIZES.values()) / len(SIZES) * len(classes))
    urgent = [at for at, (_, c) in enumerate(classes) if c == "interactive"]
    work = [
        PlannedGroup(
            id=GroupId(str(at)),
            model=classes[at][0],
            requests=1,
            deadline_s=None,
            time={k: f.time(max(1, round(draws[at]))) for k, f in forms[classes[at]].items()},
        )
        for at in urgent
    ]
    scale = load * INTERACTIVE_S[1] / max(_least_s(work, fleet), 1e-9)
    for at in urgent:
        draws[at] *= scale
    ready = set(urgent)
    rest = sum(d for at, d in enumerate(draws) if at not in ready)
    factor = max(0.1, (total - sum(draws[at] for at in urgent)) / max(rest, 1e-9))
    size = [max(1, round(d if at in ready else d * factor)) for at, d in enumerate(draws)]
    patient = [at for at in range(len(size)) if at not in ready]
    for step in range(abs(total - sum(size)) if patient else 0):
        at = patient[step % len(patient)]
        size[at] = max(1, size[at] + (1 if sum(size) < total else -1))
    return size


def _least_s(groups: Sequence[PlannedGroup], fleet: Sequence[Instance]) -> float:
    """Least time in which two kinds serve the groups, split at will: to each kind what gains most by it."""
    count = {kind: sum(i.kind == kind for i in fleet) for kind in ("A10", "A100")}
    slow, fast = (
        np.array([g.time[k].service.mean if k in g.time else np.inf for g in groups]) for k in ("A10", "A100")
    )
    order = np.argsort(slow / fast, kind="stable")
    on_slow = np.cumsum(np.where(np.isfinite(slow), slow, 0.0)[order]) / max(count["A10"], 1e-9)
    on_fast = (fast.sum() - np.cumsum(fast[order])) / max(count["A100"], 1e-9)
    usable = np.isfinite(slow[order])
    on_slow = np.where(usable, on_slow, np.inf)
    return float(min(np.maximum(on_slow, on_fast).min(initial=np.inf), fast.sum() / max(count["A100"], 1e-9)))


def _worked(
    problem: Problem,
    instance: Instance,
    queue: Sequence[GroupId],
    groups: dict[GroupId, PlannedGroup],
    elapsed_s: float,
) -> Instance:
    """Let an instance work on its queue; takes what it served out of `groups`."""
    kind = problem.kinds[instance.kind]
    left_s = elapsed_s - instance.busy.mean
    loaded, warm, at = instance.loaded_model, set(instance.warm_models), 0
    busy = NOTHING if left_s >= 0 else Normal(-left_s, instance.busy.var)
    while left_s > 0 and at < len(queue):
        group = groups[queue[at]]
        if group.model != loaded:
            cost = kind.models[group.model]
            left_s -= kind.models[loaded].unload_s if loaded in kind.models else 0.0
            left_s -= cost.swap_warm_s if group.model in warm else cost.swap_cold_s
            warm |= {group.model} | ({loaded} if loaded else set())
            loaded = group.model
        if left_s <= 0:
            busy = Normal(-left_s)
            break
        service = group.time[instance.kind].service
        served = group.requests if service.mean <= left_s else int(group.requests * left_s / service.mean)
        left_s -= service.mean
        if served >= group.requests:
            del groups[group.id]
            at += 1
            continue
        groups[group.id] = _rest(group, group.requests - served)
    return replace(
        instance, loaded_model=loaded, warm_models=tuple(sorted(warm)), busy=busy, queue=tuple(queue[at:])
    )


def _rest(group: PlannedGroup, requests: int) -> PlannedGroup:
    """Return the rest of a group; the variance is proportional to the requests."""
    share = requests / group.requests
    time = {
        kind: replace(
            t,
            service=Normal(t.service.mean * share, t.service.var * share),
            class_sd_s=t.class_sd_s * share,
            speed_sd_s=t.speed_sd_s * share,
        )
        for kind, t in group.time.items()
    }
    return replace(group, requests=requests, time=time)
