"""Tasks of coding agents, drawn from a seed: calls, pauses, growing prompts and deadlines."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from qlm.simulator.engine.generation import PREFIX_TOKENS
from qlm.simulator.prefixes import PrefixIds, block_ids
from qlm.simulator.scenario import Workload
from qlm.simulator.seeds import Seeds
from qlm.simulator.tasks import TaskCalls

CALLS: Final = (3, 30)
"""Least and most calls of a task; drawn evenly on a logarithmic scale, since short tasks are more common."""
PAUSE_MEDIAN_S: Final = 2.0
PAUSE_SIGMA: Final = 1.2
PAUSE_MAX_S: Final = 10.0
"""Pauses in which the agent runs its tools: log-normal, cut here."""
SYSTEM_TOKENS: Final = 3 * PREFIX_TOKENS
"""System prompt and tools, which all tasks share."""
FIRST_MEDIAN, GROWTH_MEDIAN, ANSWER_MEDIAN = 1_200.0, 350.0, 120.0
"""Tokens of a task's first question, of what each tool returns, and of an answer."""
CONTEXT_MAX: Final = 30_000
PREFILL_S, TOKEN_S = 0.1, 0.0115
"""Time to a first token and per further one at light load, by which deadlines are drawn."""
ARRIVALS_CV: Final = 3.0
"""Coefficient of variation between arrivals of tasks: people start several at a time."""
SLACK: Final = (1.1, 2.0)
"""A task's deadline, in multiples of what it takes at light load: drawn evenly between these."""

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Size:
    """Number and rate of the tasks that arrive.

    Attributes:
        tasks: Their number.
        tasks_per_s: Their rate; the times between arrivals are Gamma-distributed.
    """

    tasks: int
    tasks_per_s: float


def draw(size: Size, seeds: Seeds) -> Workload:
    """Draw the calls of all tasks; equal seeds give equal tasks at every rate."""
    tasks = np.arange(size.tasks)
    low, high = np.log(CALLS[0]), np.log(CALLS[1] + 1)
    calls = np.floor(np.exp(seeds.rng("calls").uniform(low, high, size.tasks))).astype(np.int64)
    shape = 1 / ARRIVALS_CV**2
    starts = np.cumsum(seeds.rng("arrivals").gamma(shape, 1 / shape, size.tasks)) / size.tasks_per_s
    task = np.repeat(tasks, calls)
    first = np.diff(task, prepend=-1) > 0
    answers = _lengths(seeds, "answers", ANSWER_MEDIAN, 0.7, len(task), 8, 1_000)
    pauses = _pauses_s(seeds, first)
    prompts = _prompts(seeds, task, first, answers)
    took_s = np.bincount(task, PREFILL_S + TOKEN_S * answers + pauses)
    slack = seeds.rng("slack").uniform(*SLACK, size.tasks)
    zeros = np.zeros(len(task), dtype=np.int64)
    return Workload(
        arrival_ns=_ns(starts)[task],
        model=zeros,
        tenant=zeros,
        slo_class=zeros,
        prompt_tokens=prompts,
        output_tokens=answers,
        max_tokens=np.full(len(task), 1_000, dtype=np.int64),
        prefixes=_prefixes(task, prompts),
        prefix_tokens=prompts,
        tasks=TaskCalls(task=task, pause_ns=_ns(pauses), deadline_ns=_ns(starts + slack * took_s)[task]),
    )


def _prompts(seeds: Seeds, task: Ints, first: npt.NDArray[np.bool_], answers: Ints) -> Ints:
    """Return prompt lengths: each prompt has the one before in it, its answer, and what a tool returned."""
    begins = SYSTEM_TOKENS + _lengths(seeds, "questions", FIRST_MEDIAN, 0.6, len(task), 50, 8_000)
    grows = _lengths(seeds, "tools", GROWTH_MEDIAN, 0.9, len(task), 10, 4_000)
    added = np.where(first, begins, grows + np.concatenate([[0], answers[:-1]]))
    whole = np.cumsum(added)
    before = (whole - added)[first]
    return np.asarray(np.minimum(whole - before[task], CONTEXT_MAX), dtype=np.int64)


def _prefixes(task: Ints, prompts: Ints) -> PrefixIds:
    """Return the blocks of prompts: those of the system prompt are all tasks', the others the task's own."""
    system = tuple(range(SYSTEM_TOKENS // PREFIX_TOKENS))
    return tuple(system + ids[len(system) :] for ids in block_ids(task + 1, prompts))


def _pauses_s(seeds: Seeds, first: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    drawn = seeds.rng("pauses").lognormal(np.log(PAUSE_MEDIAN_S), PAUSE_SIGMA, len(first))
    return np.where(first, 0.0, np.minimum(drawn, PAUSE_MAX_S))


def _lengths(
    seeds: Seeds, purpose: str, median: float, sigma: float, count: int, least: int, most: int
) -> Ints:
    drawn = seeds.rng(purpose).lognormal(np.log(median), sigma, count)
    return np.clip(np.round(drawn), least, most).astype(np.int64)


def _ns(seconds: npt.NDArray[np.float64]) -> Ints:
    return np.round(seconds * 1e9).astype(np.int64)
