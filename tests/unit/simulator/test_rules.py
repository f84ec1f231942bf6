"""Rules by name: each changes what it says, on any policy, and an unknown one is refused."""

from dataclasses import fields, replace

import pytest

from qlm.domain.errors import InvalidValueError
from qlm.simulator.policies import POLICIES, Policy
from qlm.simulator.rules import RULES, policy_named
from support.simulation import LARGE, SMALL, run, scenario, workload


def changed(name: str, base: str) -> dict[str, object]:
    """Return the attributes in which two policies differ, but for their names."""
    ours, theirs = policy_named(name), POLICIES[base]
    names = [each.name for each in fields(Policy) if each.name != "name"]
    return {name: getattr(ours, name) for name in names if getattr(ours, name) != getattr(theirs, name)}


def test_a_policy_without_rules_is_the_policy() -> None:
    assert all(policy_named(name) == policy for name, policy in POLICIES.items())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("edf+demote", {"demotes": True}),
        ("edf+hold", {"swap_idle_s": 4.0}),
        ("edf+rules", {"demotes": True, "swap_idle_s": 4.0}),
        ("edf+demote+hold", {"demotes": True, "swap_idle_s": 4.0}),
        ("edf+visits", {"demotes": True, "swap_idle_s": 4.0, "visits": True}),
        ("edf+placed", {"demotes": True, "swap_idle_s": 4.0, "visits": True, "places": True}),
        ("sjf+evict", {"evicts": True}),
        ("sjf+cluster", {"clusters": True}),
        ("qlm+whole", {"clusters": False}),
        ("edf+cluster+whole", {}),
    ],
)
def test_a_rule_changes_what_it_says_and_no_more(name: str, expected: dict[str, object]) -> None:
    assert changed(name, name.partition("+")[0]) == expected


@pytest.mark.parametrize("name", ["magic", "edf+magic", "edf+", "+demote", "edf-demote", "demote", ""])
def test_an_unknown_name_gets_one_line_with_all_that_exist(name: str) -> None:
    with pytest.raises(InvalidValueError) as error:
        policy_named(name)
    message = str(error.value)
    assert "\n" not in message and repr(name) in message
    assert all(each in message for each in (*POLICIES, *(f"+{rule}" for rule in RULES)))


def test_a_simulation_runs_under_the_rules_and_reports_their_names() -> None:
    subject = scenario(workload(150, rate_rps=40.0, models=2), models=(SMALL, LARGE))
    for rule in RULES:
        result = run(subject, policy=f"edf+{rule}", seed=3)
        assert result.policy == f"edf+{rule}"
        assert set(result.outcomes.outcome) <= {"stop", "length"}


@pytest.mark.parametrize("policy", sorted(set(POLICIES) - {"edf", "qlm"}))
def test_every_baseline_runs_under_all_rules_together(policy: str) -> None:
    subject = scenario(workload(80, rate_rps=40.0, models=2), models=(SMALL, LARGE))
    result = run(subject, policy=f"{policy}+evict+cluster+placed", seed=3)
    assert set(result.outcomes.outcome) <= {"stop", "length"}


def test_rules_have_the_values_of_the_default_policy() -> None:
    ours, default = policy_named("edf+placed+evict+cluster+strands+bounded"), POLICIES["qlm"]
    assert default == replace(ours, name=default.name, about=default.about, make_planner=default.make_planner)
