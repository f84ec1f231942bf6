"""How large a problem the exact solver takes, and how far it goes."""

from typing import Final

SCENARIOS_MAX: Final = 1000
"""Scenarios of a problem; time and memory grow with their number."""

EXACT_GROUPS_MAX: Final = 14
"""Placeable groups of a problem: the pattern form has a column per set of groups on each lane (16 383)."""

POSITION_GROUPS_MAX: Final = 8
"""Placeable groups that the position form takes; it proves optimality up to about five."""

EXACT_INSTANCES_MAX: Final = 200
"""Instances of a problem; identical ones count as one in all but the master problem's right-hand side."""

TIME_LIMIT_S: Final = 60.0
"""Default time of the solver."""

PATTERNS_MAX: Final = 100_000
"""Patterns of all lanes that the master problem takes: 10 groups on 97 instances that all differ."""

LABELS_BYTES_MAX: Final = 1024 * 2**20
"""Memory for the labels of one lane."""

LABEL_STEPS_PER_S: Final = 50_000_000.0
"""Scenario steps that labelling does in a second, at least; turns a time limit into a limit on work, so that
labelling ends at the same label on any machine."""

REQUEST_BLOCKS_MAX: Final = 512
"""Requests of a group whose expected penalty is worked out one by one; of more, neighbours share a value.
Only those within 8.3 standard deviations of the deadline count here: right to about 1e-4 of their penalty."""

PROVEN_GAP: Final = 1e-6
"""A plan is proven when its value is within this share (and this many seconds) of the bound."""
