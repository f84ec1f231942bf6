"""Requests as SLO-aware annealing was evaluated with (section 5.1), drawn.

Half are chats, due by their first token (10 s) and pace (50 ms per token), half are code completions, due
as a whole (30 s). Lengths are lognormal: those of chats have the means of ShareGPT in the vLLM paper
(https://arxiv.org/abs/2309.06180, section 6.1: 161 and 338 tokens); those of code are chosen so that a mean
one alone takes the 3 s that the annealing paper states, with prompts that are a guess. So are the deviations.
"""

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from qlm.agents.batching.policies.annealing.jobs import Jobs
from qlm.agents.batching.policies.annealing.latency import latency
from qlm.rct_estimator.profiles.iteration import Coefficients, Equations

Floats = npt.NDArray[np.float64]

V100: Final = Equations(
    prefill=Coefficients(alpha=0.1, beta=5.7, gamma=0.01, delta=43.67),
    decode=Coefficients(alpha=0.0002, beta=0.275, gamma=0.00088, delta=15.85),
)
"""Qwen2.5-7B on two V100, milliseconds (table 2)."""

E2E_S: Final = 30.0
TTFT_S: Final = 10.0
TPOT_S: Final = 0.05

TOKENS_MAX: Final = 1999
"""Texts are shorter than 2k, for the equations to hold."""

CHAT: Final = ((161.0, 1.0), (338.0, 0.8))
CODE: Final = ((60.0, 0.6), (184.0, 0.6))
"""Mean and standard deviation of the logarithm, of prompt and answer."""


class Requests(NamedTuple):
    """n requests that arrive together, in order of arrival.

    Attributes:
        chat: Which of them are chats.
        prompt: Tokens.
        output: Tokens.
        tightness: Factor on the objectives.
    """

    chat: npt.NDArray[np.bool_]
    prompt: Floats
    output: Floats
    tightness: float = 1.0

    def jobs(self, batch_max: int, output: Floats | None = None) -> Jobs:
        """Return what a search orders; `output` has other lengths to expect."""
        expected = self.output if output is None else output
        times = latency(V100, min(batch_max, len(self.chat)), self.prompt, expected)
        first = np.where(times.tpot_s > TPOT_S, -np.inf, self.tightness * TTFT_S - times.ttft_s)
        latest_s = np.where(self.chat, first, self.tightness * E2E_S - times.e2e_s)
        return Jobs(times.e2e_s, latest_s, self.prompt + expected, np.inf)


def drawn(rng: np.random.Generator, count: int, tightness: float = 1.0) -> Requests:
    """Draw requests; half of them, rounded up, are chats, in random order."""
    chat = rng.permutation(np.arange(count) % 2 == 0)
    prompt, output = (
        np.where(chat, _lengths(rng, count, *of_chat), _lengths(rng, count, *of_code))
        for of_chat, of_code in zip(CHAT, CODE, strict=True)
    )
    return Requests(chat, prompt, output, tightness)


def _lengths(rng: np.random.Generator, count: int, mean: float, deviation: float) -> Floats:
    tokens = rng.lognormal(np.log(mean) - deviation**2 / 2, deviation, count)
    return np.clip(np.round(tokens), 4, TOKENS_MAX // 2)


def searched_cases(cases: int, seed: int, *, most: int = 8) -> list[Jobs]:
    """Draw cases of 2 to `most` requests, in batches of 1, 2 and 4 in turn, with objectives to miss.

    With the paper's objectives, so few requests meet nearly all of them; so these are a tenth to all of it.
    """
    rng = np.random.default_rng(seed)
    found = []
    for number in range(cases):
        count, tightness = int(rng.integers(2, most + 1)), float(rng.uniform(0.1, 1.0))
        found.append(drawn(rng, count, tightness).jobs((1, 2, 4)[number % 3]))
    return found
