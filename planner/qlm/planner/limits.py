"""Limits of planning problems: what is larger is refused by name, before anything is built from it.

A live plan is far below all of them: 400 000 queued requests are some 1 600 groups on 100 instances.
"""

from typing import Final

GROUPS_MAX: Final = 20_000
"""Groups in a problem, and in one queue."""

INSTANCES_MAX: Final = 2_000
"""Instances in a problem."""

KINDS_MAX: Final = 500
"""Kinds of instances; instances that differ in the models they serve are of different kinds."""

MODELS_MAX: Final = 1_000
"""Models of one kind, and models named by one problem."""

REQUESTS_PER_GROUP_MAX: Final = 1_000_000
"""Requests in one group."""

REQUESTS_MAX: Final = 10_000_000
"""Requests in all groups together."""

DURATION_MAX_S: Final = 1e9
"""Longest drain, tail, swap or busy time and dearest miss or move, seconds: some 32 years. Sums of as many
as there can be stay exact to less than a millisecond."""

CLOCK_MAX_S: Final = 1e11
"""Farthest that `now_s` and deadlines are from 0, seconds: Unix time for the next 3 000 years."""

ON_TIME_S: Final = 1e-6
"""A certain completion this close behind its deadline is on time: rounding must not decide about a miss (on a
clock of Unix time, neighbouring numbers are 0.2 microseconds apart)."""

BYTES_MAX: Final = 2**53
"""Largest size of memory or weights."""

PRIORITY_MAX: Final = 2**53
"""Priorities are from -2^53 to 2^53."""

NAME_CHARACTERS_MAX: Final = 4096
"""Longest id or name."""

FILE_BYTES_MAX: Final = 32 * 2**20
"""Largest file with a problem or a plan."""

SAMPLES_MAX: Final = 1_000_000
"""Samples of a Monte Carlo estimate."""

SAMPLED_REQUESTS_MAX: Final = 4_000_000_000
"""Samples times requests of a Monte Carlo estimate: some 20 s."""

ITERATIONS_MAX: Final = 10**12
"""Most iterations to ask for."""

TIME_LIMIT_MIN_S: Final = 0.001
"""Shortest time limit."""

TIME_LIMIT_MAX_S: Final = 86_400.0
"""Longest time limit."""

SEED_MAX: Final = 2**63 - 1
"""Largest seed."""
