"""Which of the batches that no gateway runs is the next one: in turns by tenant, by the ends of windows."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from qlm.gateway.files.records import Batch, BatchSpec


def only_ends(batch: Batch, now_s: int) -> bool:
    """Return whether a batch needs no engine: it is cancelled, or its window is over."""
    return batch.cancel_s is not None or now_s >= batch.spec.expires_s


def in_turns(waiting: Iterable[BatchSpec], running: Iterable[BatchSpec]) -> Sequence[BatchSpec]:
    """Return batches in the order in which they are to run.

    Those of a tenant run by the ends of their windows. Of several tenants, the one with the fewest that run
    has the next turn.
    """
    turns = Counter(each.tenant for each in running)
    order = list[tuple[int, BatchSpec]]()
    for spec in sorted(waiting, key=_by_end):
        order.append((turns[spec.tenant], spec))
        turns[spec.tenant] += 1
    return [spec for _, spec in sorted(order, key=lambda each: (each[0], _by_end(each[1])))]


def to_yield(first: BatchSpec, running: Iterable[BatchSpec]) -> BatchSpec | None:
    """Return the running batch that is to yield to the first one that waits; None if none is.

    A tenant yields only if more of its batches run than of the other's would then, so that no batch goes back
    and forth. The one whose window ends last yields.
    """
    of_tenant = defaultdict[str, list[BatchSpec]](list)
    for spec in running:
        of_tenant[spec.tenant].append(spec)
    most = max(of_tenant.values(), key=len, default=[])
    if len(most) <= len(of_tenant[first.tenant]) + 1:
        return None
    return max(most, key=_by_end)


def _by_end(spec: BatchSpec) -> tuple[int, str]:
    return spec.expires_s, spec.id
