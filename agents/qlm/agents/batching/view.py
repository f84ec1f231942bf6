"""An instance as a batch policy sees it: one row per request, in columns."""

from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from qlm.domain.ids import RequestId
from qlm.rct_estimator.profiles.iteration import IterationTime

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

NO_READER: Final = float("inf")
"""`View.rate` of a request without a reader."""

FIRST_TOKEN_ONLY: Final = 0.0
"""`View.rate` of a request whose objective ends with its first token."""


class Place(IntEnum):
    """State of a request in the engine."""

    OUTSIDE = 0
    """New or preempted: it has no KV blocks on the accelerator."""
    INSIDE = 1
    """In the batch: it gets a token, or computes its prompt, in each iteration."""
    LOADING = 2
    """Its KV is on the way from host memory; its blocks are allocated."""
    HELD = 3
    """In the batch and skipped: it keeps its blocks and its batch slot, and computes nothing.

    An engine that schedules asynchronously still computes the iteration before: its token comes later.
    """


_OUTSIDE, _LOADING = int(Place.OUTSIDE), int(Place.LOADING)
"""As plain numbers: to compare a column with a member of an enumeration takes several times as long."""


class Machine(NamedTuple):
    """The engine and its accelerator.

    Attributes:
        iteration: Coefficients of the duration of an iteration.
        kv_blocks: KV blocks in all; one that several requests share counts for each.
        free_blocks: KV blocks that no request has, and that are not being written to host memory.
        block_tokens: Tokens per KV block.
        seqs_max: Batch slots.
        batched_tokens_max: Most tokens computed in one iteration.
        token_bytes: Bytes of KV cache per token.
        host_blocks: KV blocks for which host memory has room; 0 without offloading.
        link_bytes_per_s: Bandwidth between host memory and accelerator, one way.
        load_free_s: When the loads that were started have ended; a time like `View.now_s`.
        write_free_s: The same for writes to host memory.
    """

    iteration: IterationTime
    kv_blocks: int
    free_blocks: int
    block_tokens: int
    seqs_max: int
    batched_tokens_max: int
    token_bytes: int
    host_blocks: int
    link_bytes_per_s: float
    load_free_s: float
    write_free_s: float


class Pace(NamedTuple):
    """What the host has learned of the instance.

    Attributes:
        step_s: Duration of an iteration, smoothed; 0 before the first one.
        prompt_mean: Mean prompt, tokens.
        answer_mean: Mean answer, tokens.
        answer_square_mean: Mean of the square of an answer's tokens.
        life_s: Mean time from arrival to end; 0 before the first end.
        preemptions: Preemptions by the policy since the start.
        requests: Requests seen since the start.
    """

    step_s: float
    prompt_mean: float
    answer_mean: float
    answer_square_mean: float
    life_s: float
    preemptions: int
    requests: int


class View(NamedTuple):
    """All requests of an instance that have not ended, new ones included.

    Rows are in the engine's own order: its batch, what loads, and the others as it would admit them. Times
    are seconds since an origin that the host keeps. A request without an objective has neither reader nor
    deadline.

    Attributes:
        now_s: Time of the view.
        ids: The requests; row i of each column is about `ids[i]`.
        place: `Place` of each.
        arrival_s: Arrival at QLM.
        prompt: Tokens of the prompt.
        generated: Output tokens so far, those of earlier generations included.
        blocks: KV blocks on the accelerator.
        host_tokens: Tokens, from the first on, whose KV is in host memory, or will be when it is preempted.
        preemptions: Preemptions so far.
        rate: Pace of the reader, tokens per second; `NO_READER` or `FIRST_TOKEN_ONLY` without one.
        ttft_s: Seconds from arrival until the reader expects the first token; inf without such an objective.
        read_end_s: When the reader has read all that was delivered; the arrival before the first token.
        late_s: Lateness of the last token: the idle time of the user so far, seconds.
        late_sum_s: Sum of the lateness of all tokens, seconds.
        deadline_s: Deadline of the whole answer; inf without.
        rank: Its place in the virtual queue, lower first; requests of equal rank are served by arrival.
        pinned: It must not be preempted.
        left_mean: Expected output tokens to come.
        left_sd: Standard deviation of that.
        left_max: Most output tokens to come, by the limit of the request; 1 or more.
        machine: The engine.
        pace: Learned of the instance.
    """

    now_s: float
    ids: Sequence[RequestId]
    place: Ints
    arrival_s: Floats
    prompt: Ints
    generated: Ints
    blocks: Ints
    host_tokens: Ints
    preemptions: Ints
    rate: Floats
    ttft_s: Floats
    read_end_s: Floats
    late_s: Floats
    late_sum_s: Floats
    deadline_s: Floats
    rank: Ints
    pinned: Flags
    left_mean: Floats
    left_sd: Floats
    left_max: Floats
    machine: Machine
    pace: Pace

    @property
    def inside(self) -> Flags:
        """True for each request that has a batch slot or is loading."""
        return np.asarray(self.place != _OUTSIDE)

    @property
    def outside(self) -> Flags:
        """True for each request that has neither."""
        return np.asarray(self.place == _OUTSIDE)

    @property
    def loading(self) -> Flags:
        """True for each request that is loading."""
        return np.asarray(self.place == _LOADING)

    @property
    def tokens(self) -> Ints:
        """Prompt and output tokens of each request: its text so far."""
        return np.asarray(self.prompt + self.generated)

    @property
    def needed_blocks(self) -> Ints:
        """KV blocks that each request takes once its next token is computed."""
        return np.asarray(-(-(self.tokens + 1) // self.machine.block_tokens))
