"""Several streams as one workload."""

from dataclasses import dataclass

import numpy as np

from qlm.domain.errors import InvalidValueError
from qlm.simulator.scenario import IntArray, Workload
from qlm.simulator.seeds import Seeds
from qlm.simulator.workload.arrivals import check_requests
from qlm.simulator.workload.drawing import Drawn, draw
from qlm.simulator.workload.stream import Stream, StreamCounts
from qlm.simulator.workload.stream_checks import check_stream
from qlm.simulator.workload.trace import ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadMaker:
    """Draws the requests of a seed; what `Scenario.make_workload` calls.

    Attributes:
        streams: What comes; their names differ.
        context_tokens: Of each model, in the order of the scenario.
        load: By what all rates are multiplied.
    """

    streams: tuple[Stream, ...]
    context_tokens: tuple[int, ...]
    load: float = 1.0

    def __post_init__(self) -> None:
        names = [stream.name for stream in self.streams]
        if not names or len(set(names)) < len(names):
            raise InvalidValueError("workload", names, "one or more streams, each with a name of its own")
        for stream in self.streams:
            check_stream(stream)

    def __call__(self, seeds: Seeds) -> Workload:
        """Draw the requests of a seed."""
        return self.draw(seeds)[0]

    def draw(self, seeds: Seeds) -> tuple[Workload, tuple[StreamCounts, ...]]:
        """Draw the requests of a seed, and count what was cut and left out, per stream.

        Raises:
            InvalidValueError: They are too many, or come too late; names the stream (`workload.NAME`).
        """
        context = np.array(self.context_tokens, dtype=np.int64)
        drawn: list[Drawn] = []
        for stream in self.streams:
            drawn.append(_named(stream, seeds, self.load, context))
            check_requests("workload", sum(each.counts.requests for each in drawn))
        return _merged(drawn), tuple(each.counts for each in drawn)


def _named(stream: Stream, seeds: Seeds, load: float, context: IntArray) -> Drawn:
    try:
        return draw(stream, seeds, load, context)
    except InvalidValueError as error:
        field = f"workload.{stream.name}.{error.field}"
        raise InvalidValueError(field, error.value, error.expected) from None


def _merged(drawn: list[Drawn]) -> Workload:
    tenants = tuple(sorted({name for each in drawn for name in each.requests.tenant.names}))
    tenant = _joined([_codes(each, tenants) for each in drawn])
    arrival_ns = _joined([each.arrival_ns for each in drawn])
    model = _joined([each.requests.model for each in drawn])
    slo_class = _joined([each.slo_class for each in drawn])
    prompt = _joined([each.requests.prompt_tokens for each in drawn])
    output = _joined([each.output_tokens for each in drawn])
    max_tokens = _joined([each.max_tokens for each in drawn])
    prefixes: list[tuple[int, ...]] = []
    if any(each.prefixes for each in drawn):
        for each in drawn:
            prefixes.extend(each.prefixes or [()] * len(each.arrival_ns))
    # Equal times in the order of their content, so that no order of streams or rows shows.
    keys = [ranks(prefixes)] if prefixes else []
    order = np.lexsort([*keys, max_tokens, output, prompt, slo_class, tenant, model, arrival_ns])
    return Workload(
        arrival_ns=arrival_ns[order],
        model=model[order],
        tenant=tenant[order],
        slo_class=slo_class[order],
        prompt_tokens=prompt[order],
        output_tokens=output[order],
        max_tokens=max_tokens[order],
        tenants=tenants,
        prefixes=tuple(prefixes[row] for row in order.tolist()) if prefixes else (),
    )


def _codes(drawn: Drawn, tenants: tuple[str, ...]) -> IntArray:
    own = drawn.requests.tenant
    place = {name: index for index, name in enumerate(tenants)}
    return np.array([place[name] for name in own.names], dtype=np.int64)[own.codes]


def _joined(parts: list[IntArray]) -> IntArray:
    return np.concatenate(parts)
