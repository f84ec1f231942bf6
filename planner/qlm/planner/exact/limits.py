"""Limits of the exact solver: sizes, time and memory."""

from typing import Final

SCENARIOS_MAX: Final = 1000
"""Most scenarios of a problem; time and memory grow with their number."""

EXACT_GROUPS_MAX: Final = 14
"""Most placeable groups: the pattern form has a column per set of groups on each lane (16 383)."""

EXACT_INSTANCES_MAX: Final = 200
"""Most instances of a problem; identical ones count once, but for the master problem's right-hand side."""

TIME_LIMIT_S: Final = 60.0
"""Default time limit."""

PATTERNS_MAX: Final = 100_000
"""Most patterns in the master problem: 10 groups on 97 instances that all differ."""

LABELS_BYTES_MAX: Final = 1024 * 2**20
"""Most memory for the labels of one lane."""

LABEL_STEPS_PER_S: Final = 50_000_000.0
"""Least scenario steps of labelling per second. It turns a time limit into a limit on work, so that
labelling ends at the same label on any machine."""

REQUEST_BLOCKS_MAX: Final = 512
"""Most requests of a group whose expected penalty is computed one by one; of more, neighbours share a value.
Only those within 8.3 standard deviations of the deadline count here: right to about 1e-4 of their penalty."""

PROVEN_GAP: Final = 1e-6
"""A plan is proven when its penalty is within this share (and this many seconds) of the bound."""
