"""What a plan compared when it left an instance idle beside work."""

from dataclasses import replace

from qlm.agents.core.stats.gpu_time import Activity, GpuTime, GpuUse
from qlm.controller.core.idle_reasons import EXPLAINED_NS, comparison, explain, plan_cost
from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.planner.problem import GroupTime, Instance, Kind, ModelCost, Plan, PlannedGroup, Problem
from qlm.planner.verify.referee import verify
from qlm.rct_estimator.normal import Normal

A, B = ModelId("a"), ModelId("b")
IDLE, BUSY = InstanceId("i"), InstanceId("j")
G, H = GroupId("g"), GroupId("h")
COST = ModelCost(weights_bytes=1, swap_warm_s=2.0, swap_cold_s=30.0)
TIME = {"K": GroupTime(service=Normal(10.0), tail=Normal(1.0))}
PROBLEM = Problem(
    now_s=0.0,
    kinds={"K": Kind(host_memory_bytes=10, models={A: COST, B: COST})},
    instances=(
        Instance(id=IDLE, kind="K", loaded_model=A),
        Instance(id=BUSY, kind="K", loaded_model=B, queue=(G, H)),
    ),
    groups=(
        PlannedGroup(id=G, model=B, requests=5, deadline_s=15.0, time=TIME),
        PlannedGroup(id=H, model=B, requests=7, deadline_s=15.0, time=TIME),
    ),
)
PLAN = Plan(queues={IDLE: (), BUSY: (G, H)})
COST_S = plan_cost(PROBLEM, PLAN)


def test_it_has_the_costs_of_the_plan_as_it_is_and_with_the_group_there() -> None:
    there_s = verify(PROBLEM, PLAN).penalty_s
    here_s = verify(PROBLEM, Plan(queues={IDLE: (G,), BUSY: (H,)})).penalty_s
    assert there_s != here_s
    text = comparison(PROBLEM, PLAN, IDLE, (B,), COST_S)
    costs = f"the plan costs {there_s:.2f} s, and {here_s:.2f} s with them here"
    assert text == f"5 requests of b are planned for j: {costs}"


def test_other_reasons_of_a_plan() -> None:
    assert comparison(PROBLEM, PLAN, BUSY, (B,), COST_S) == "the plan has some of it here"
    assert comparison(PROBLEM, PLAN, IDLE, (A,), COST_S) == "no plan has it yet"
    assert comparison(PROBLEM, PLAN, InstanceId("new"), (B,), COST_S) == "the plan does not know the instance"
    other = (Instance(id=IDLE, kind="L", loaded_model=A), *PROBLEM.instances[1:])
    restricted = replace(
        PROBLEM, instances=other, kinds={**PROBLEM.kinds, "L": Kind(host_memory_bytes=1, models={A: COST})}
    )
    assert comparison(restricted, PLAN, IDLE, (B,), COST_S).endswith("the model is not placed here")


def test_an_interval_is_explained_once_and_when_it_is_long() -> None:
    idle, time = Activity.idle(A, (B,)), GpuTime()
    time.observe(idle, 0)
    assert not explain(time, PROBLEM, PLAN, IDLE, COST_S)
    time.observe(idle, EXPLAINED_NS - 1)
    assert not explain(time, PROBLEM, PLAN, IDLE, COST_S)
    time.observe(idle, EXPLAINED_NS)
    assert explain(time, PROBLEM, PLAN, IDLE, COST_S) and not explain(time, PROBLEM, PLAN, IDLE, COST_S)
    assert time.present is not None and time.present.plan == comparison(PROBLEM, PLAN, IDLE, (B,), COST_S)
    time.observe(Activity(use=GpuUse.SWAP, model=B), EXPLAINED_NS)
    time.observe(Activity(use=GpuUse.SWAP, model=B), 9 * EXPLAINED_NS)
    assert not explain(time, PROBLEM, PLAN, IDLE, COST_S), "it is not idle"
