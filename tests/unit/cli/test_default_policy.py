"""Simulations and deployments that name no policy run under the same one, with the same rules."""

import click
import pytest

from qlm.cli.commands.evaluate.rct import rct_command
from qlm.cli.commands.simulate import simulate_command
from qlm.cli.config.default import emulated_config
from qlm.cli.config.settings import Config
from qlm.cli.runtime.wiring import agent_settings, controller_settings
from qlm.planner.policy.default import DEFAULT_POLICY
from qlm.simulator.policies import POLICIES
from qlm.simulator.policy_names import POLICY_NAMES, RULE_NAMES
from qlm.simulator.rules import RULES, policy_named


@pytest.mark.parametrize("command", [simulate_command, rct_command])
def test_commands_that_simulate_have_the_default_of_deployments(command: click.Command) -> None:
    (option,) = [each for each in command.params if each.name == "policy"]
    assert option.default == DEFAULT_POLICY == Config.model_fields["planner"].default
    context = click.Context(command)
    assert option.get_default(context) is not None
    assert option.type_cast_value(context, option.get_default(context)) == policy_named(DEFAULT_POLICY)


def test_its_rules_in_simulations_are_those_of_the_default_configuration() -> None:
    policy, config = policy_named(DEFAULT_POLICY), emulated_config({})
    agent, controller = agent_settings(config), controller_settings(config)
    assert (policy.evicts, policy.demotes, policy.demotes) == (
        agent.preempts,
        agent.demotes,
        controller.demotes,
    )
    assert (policy.limits_batch, policy.warms_ahead) == (agent.limits_concurrency, agent.prefetches)
    holds = policy.swap_idle_s > 0 and not policy.visits
    assert (policy.swap_idle_s, holds) == (agent.swap_idle_s, controller.swap_hysteresis)
    assert (policy.visits, policy.late_weight) == (agent.visits, agent.late_weight)
    assert (policy.places, policy.balances, policy.clusters) == (
        controller.places,
        controller.balances,
        controller.clusters,
    )


def test_the_help_names_all_policies_and_rules() -> None:
    assert (tuple(POLICIES), tuple(RULES)) == (POLICY_NAMES, RULE_NAMES)
