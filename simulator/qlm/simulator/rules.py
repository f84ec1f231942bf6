"""Rules that can be added to any policy by name, as in `edf+demote+hold`."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from qlm.domain.errors import InvalidValueError
from qlm.planner.policy.default import DEFAULT_POLICY
from qlm.simulator.policies import POLICIES, Policy

SEPARATOR: Final = "+"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A change of a policy.

    Attributes:
        name: Name behind a `+`.
        about: Description in one line.
        sets: Attributes of `Policy` that it sets.
    """

    name: str
    about: str
    sets: Mapping[str, Any]


_DEFAULT: Final = POLICIES[DEFAULT_POLICY]
_EVICT: Final = {"evicts": _DEFAULT.evicts}
_DEMOTE: Final = {"demotes": _DEFAULT.demotes}
_HOLD: Final = {"swap_idle_s": _DEFAULT.swap_idle_s}
_CLUSTER: Final = {"clusters": _DEFAULT.clusters}
_BOTH: Final = _DEMOTE | _HOLD

RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        rule.name: rule
        for rule in (
            Rule(name="evict", about="agents preempt running requests for more urgent ones", sets=_EVICT),
            Rule(name="demote", about="agents demote requests that cannot meet their deadline", sets=_DEMOTE),
            Rule(name="hold", about="agents hold back swaps for deferrable work", sets=_HOLD),
            Rule(name="cluster", about="classes are divided by the length of prompts", sets=_CLUSTER),
            Rule(
                name="whole",
                about="classes are not divided by the length of prompts",
                sets={"clusters": False},
            ),
            Rule(
                name="strands",
                about="calls of tasks prefer the instance whose cache has their prefixes",
                sets={"strands": _DEFAULT.strands},
            ),
            Rule(
                name="mixed",
                about="calls of tasks run anywhere, whatever earlier ones left in prefix caches",
                sets={"strands": False},
            ),
            Rule(
                name="bounded",
                about="batches are no larger than keeps up with their readers, and plans rely on it",
                sets={"bounds_readers": True},
            ),
            Rule(
                name="unbounded",
                about="readers do not bound batches",
                sets={"bounds_readers": False},
            ),
            Rule(name="rules", about="`demote` and `hold`", sets=_BOTH),
            Rule(
                name="visits",
                about="`rules`, and agents leave a model at the latest safe moment",
                sets=_BOTH | {"visits": True},
            ),
            Rule(
                name="placed",
                about="`visits`, and each instance has its models for the next minutes",
                sets=_BOTH | {"visits": True, "places": True},
            ),
            Rule(
                name="unplaced",
                about="models are swapped in the order of the queue, and instances serve any of their models",
                sets={"visits": False, "places": False},
            ),
        )
    }
)
"""All rules; a parameter of a rule has the value of the default policy."""


def policy_named(name: str) -> Policy:
    """Return a policy with its rules; later rules win.

    Args:
        name: Name of a policy, then any number of rules, each behind a `+`.

    Raises:
        InvalidValueError: The policy or a rule is unknown.
    """
    base, *rules = name.split(SEPARATOR)
    if base not in POLICIES or any(rule not in RULES for rule in rules):
        raise InvalidValueError("policy", name, names_expected())
    sets: dict[str, Any] = {}
    for rule in rules:
        sets |= RULES[rule].sets
    return replace(POLICIES[base], name=name, **sets)


def names_expected() -> str:
    """Describe all valid names of policies."""
    return f"one of {', '.join(POLICIES)}, then any of {', '.join(SEPARATOR + rule for rule in RULES)}"
