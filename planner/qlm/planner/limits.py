"""Limits of planning problems; larger ones are refused by name, before anything is built from them.

A live plan is far below all of them: 400 000 queued requests are some 1 600 groups on 100 instances.
"""

from typing import Final

GROUPS_MAX: Final = 20_000
"""Most groups in a problem, and in one queue."""

INSTANCES_MAX: Final = 2_000
"""Most instances in a problem."""

KINDS_MAX: Final = 500
"""Most kinds of instances; instances that differ in the models they serve are of different kinds."""

MODELS_MAX: Final = 1_000
"""Most models of one kind, and of one problem."""

REQUESTS_PER_GROUP_MAX: Final = 1_000_000
"""Most requests in one group."""

REQUESTS_MAX: Final = 10_000_000
"""Most requests in all groups together."""

DURATION_MAX_S: Final = 1e9
"""Longest service time, tail, swap or busy time, and highest price of a miss or move, seconds: some 32
years. The largest possible sums stay exact to less than a millisecond."""

CLOCK_MAX_S: Final = 1e11
"""Largest `now_s` and deadline, from 0, seconds: Unix time for the next 3 000 years."""

ON_TIME_S: Final = 1e-6
"""Tolerance of a deadline: a certain completion this close behind it is on time. Rounding must not decide
about a miss: on a clock of Unix time, neighbouring numbers are 0.2 microseconds apart."""

BYTES_MAX: Final = 2**53
"""Largest size of memory or weights."""

TOKENS_MAX: Final = 10**12
"""Largest KV cache and longest request, tokens."""

PRIORITY_MAX: Final = 2**53
"""Priorities are from -2^53 to 2^53."""

NAME_CHARACTERS_MAX: Final = 4096
"""Longest id or name."""

FILE_BYTES_MAX: Final = 32 * 2**20
"""Largest file with a problem or a plan."""

SAMPLES_MAX: Final = 1_000_000
"""Most samples of a Monte Carlo estimate."""

SAMPLED_REQUESTS_MAX: Final = 4_000_000_000
"""Most samples times requests of a Monte Carlo estimate: some 20 s."""

ITERATIONS_MAX: Final = 10**12
"""Most iterations of a search."""

TIME_LIMIT_MIN_S: Final = 0.001
"""Shortest time limit."""

TIME_LIMIT_MAX_S: Final = 86_400.0
"""Longest time limit."""

SEED_MAX: Final = 2**63 - 1
"""Largest seed."""
