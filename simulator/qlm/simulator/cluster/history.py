"""What a store knows of requests that were answered before a simulation begins."""

from qlm.domain.outcome import Outcome
from qlm.simulator.policies import Policy
from qlm.simulator.scenario import Scenario, Workload
from qlm.store.core.state import State


def record_history(state: State, scenario: Scenario, history: Workload, policy: Policy) -> None:
    """Count the lengths of earlier answers in their classes, in order of arrival."""
    window = state.limits.lengths_window
    columns = (history.model, history.slo_class, history.output_tokens, history.max_tokens)
    for model, number, tokens, tokens_max in zip(*(each.tolist() for each in columns), strict=True):
        objective = scenario.slo_classes[number]
        cls = policy.classify(scenario.models[model].id, objective.slo, objective.priority)
        outcome = Outcome.STOP if tokens <= tokens_max else Outcome.LENGTH
        state.class_row(cls).lengths.count(min(tokens, tokens_max), outcome, window)
