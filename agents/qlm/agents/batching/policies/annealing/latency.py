"""Latency of a request in a batch: equations 16 to 19 of SLO-aware annealing.

Equations 14 and 15 are `qlm.rct_estimator.profiles.iteration.Coefficients`.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from qlm.rct_estimator.profiles.iteration import Coefficients, Equations

Floats = npt.NDArray[np.float64]


class Latency(NamedTuple):
    """Times of requests without waiting, seconds; rows are sizes of a batch from 1 on, columns requests.

    Attributes:
        ttft_s: Equation 18: the prefill.
        e2e_s: Equation 17: prefill and decode.
        tpot_s: Equation 19: decode per output token.
    """

    ttft_s: Floats
    e2e_s: Floats
    tpot_s: Floats


def latency(equations: Equations, batch_max: int, prompt: Floats, output: Floats) -> Latency:
    """Return the times of requests in batches of 1 to `batch_max`.

    Args:
        equations: Coefficients of equations 14 and 15.
        batch_max: Largest batch.
        prompt: Tokens to prefill of each request (l_i).
        output: Output tokens of each (l_o), positive.
    """
    batch = np.arange(1.0, batch_max + 1)[:, None]
    prefill_ms = _ms(equations.prefill, batch, prompt)  # equation 14
    decode_ms = _decode_ms(equations.decode, batch, prompt, output)
    return Latency(
        ttft_s=prefill_ms / 1e3,  # equation 18
        e2e_s=(prefill_ms + decode_ms) / 1e3,  # equation 17
        tpot_s=decode_ms / output / 1e3,  # equation 19
    )


def _decode_ms(decode: Coefficients, batch: Floats, prompt: Floats, output: Floats) -> Floats:
    """Return equation 16, the sum of equation 15 over contexts of l_i + 1 to l_i + l_o, in closed form."""
    return output * _ms(decode, batch, prompt + (output + 1) / 2)


def _ms(each: Coefficients, batch: Floats, tokens: Floats) -> Floats:
    return each.alpha * batch * tokens + each.beta * batch + each.gamma * tokens + each.delta
