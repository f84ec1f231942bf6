"""The working set: the requests that take turns (TokenFlow, sections 4.2.1 and 4.3)."""

from typing import Final

import numpy as np

from qlm.agents.batching.packing import GROWTH_BLOCKS
from qlm.agents.batching.policies.tokenflow.candidates import Candidates
from qlm.agents.batching.policies.tokenflow.options import Options
from qlm.agents.batching.step_time import prompt_share_s
from qlm.agents.batching.view import Flags, Floats, Ints

RECOMPUTED_TIMES: Final = 3
"""Memory that stands in for host memory without offloading, in KV caches: what is preempted is computed
again, which takes no memory, but time."""


def working_set_max(these: Candidates, options: Options) -> int:
    """Return how many requests may take turns (equations 4 and 5).

    M includes host memory (ours: with the accelerator's alone nothing ever takes turns). beta is a mean
    prompt and answer. W_max is how many the accelerator takes at once: while fewer run, the set is smaller.
    """
    machine, pace = these.view.machine, these.view.pace
    footprint = max(1, -(-int(pace.prompt_mean + pace.answer_mean + 1) // machine.block_tokens))
    behind = machine.host_blocks or RECOMPUTED_TIMES * machine.kv_blocks
    static = (machine.kv_blocks + behind) // footprint  # equation 4
    running = int(np.count_nonzero(these.inside))
    if running >= min(machine.seqs_max, machine.kv_blocks // footprint):
        return max(static, running)
    return max(running + 1, int(static - options.reduction * (static - running)))  # equation 5


def schedulable(these: Candidates, members: Flags, capacity: float) -> bool:
    """Return True if the readers of the set read no faster than the engine generates (equation 6)."""
    return float(these.rate[members].sum()) <= capacity


def least_buffers_s(these: Candidates, options: Options) -> Floats:
    """Return the least buffer of each running request that may yield to a new one, seconds.

        b / r >= mu (tau_evict + tau_load + tau_schedule)

    The paper has the rule for the request that is admitted, whose buffer is empty; its text has it for those
    that exist. Ours: for the one that yields. tau_schedule is the quantum. Without host memory nothing is
    written, and the text is computed again.
    """
    view, machine = these.view, these.view.machine
    if machine.host_blocks:
        token_s = machine.token_bytes / machine.link_bytes_per_s
        queues_s = max(0.0, machine.write_free_s - view.now_s) + max(0.0, machine.load_free_s - view.now_s)
        unwritten = np.maximum(0, view.tokens - view.host_tokens)
        back_s = queues_s + (unwritten + view.tokens) * token_s
    else:
        back_s = prompt_share_s(view, view.tokens)
    return np.asarray(options.conservativeness * (back_s + options.quantum_s))


def may_yield(these: Candidates, options: Options) -> Ints:
    """Return the running rows whose buffers allow them to yield, the fullest first."""
    able = these.inside & ~these.view.pinned & (these.buffer_s >= least_buffers_s(these, options))
    rows = able.nonzero()[0]
    return rows[np.argsort(-these.buffer_s[rows], kind="stable")]


def admitted(these: Candidates, members: Flags, yielding: Ints, *, set_max: int, capacity: float) -> Flags:
    """Return the working set with the new requests that join it, in the engine's order.

    One joins while the set has room and stays schedulable, and if blocks and a slot are free for it, or
    running members yield enough; each of these yields to one only. Without a reader it joins only for what is
    free.

    Args:
        these: The requests.
        members: The working set.
        yielding: Running rows that may yield, the first one first.
        set_max: Largest working set.
        capacity: Output tokens per second of the engine.
    """
    machine, needed = these.view.machine, these.packing.needed
    joined, load = members.copy(), float(these.rate[members].sum())
    room = set_max - int(np.count_nonzero(members))
    offers = needed[yielding[::-1]].tolist()
    free, slots = machine.free_blocks, machine.seqs_max - int(np.count_nonzero(these.inside))
    waiting = (~members).nonzero()[0][: max(0, room)]
    for row, blocks, rate in zip(
        waiting.tolist(), needed[waiting].tolist(), these.rate[waiting].tolist(), strict=True
    ):
        need = blocks + GROWTH_BLOCKS
        while (free < need or slots < 1) and offers and rate:
            free, slots = free + offers.pop(), slots + 1
        if load + rate > capacity or free < need or slots < 1:
            break
        free, slots, load = free - need, slots - 1, load + rate
        joined[row] = True
    return joined
