"""Contract of every store: histograms of output lengths, and the newest arrival of a class."""

from contract.suites.store.values import (
    ARRIVAL_NS,
    CHAT,
    G1,
    LENGTHS_WINDOW,
    A,
    Subject,
    alive,
    enqueued,
    leased,
    metadata,
)
from qlm.domain.length_histogram import LENGTH_BINS, NO_LENGTHS, LengthHistogram, length_bin
from qlm.domain.outcome import Outcome
from qlm.domain.output import LogEntry
from qlm.domain.plan_change import CreateGroup
from qlm.domain.ports.store import Store
from qlm.domain.view import ClassView


async def _ended(store: Store, n: int, outcome: Outcome, tokens: int) -> None:
    epoch = await leased(store, n, A)
    entry = LogEntry(id=metadata(n).id, epoch=epoch, offset=0, token_ids=(5,) * tokens, outcome=outcome)
    await store.append([entry])


async def _chat(store: Store) -> ClassView:
    """The class, which is listed while one of its requests waits."""
    return next(view for view in (await store.view()).classes if view.cls == CHAT)


def _histogram(ended: dict[int, int], cut_off: dict[int, int]) -> LengthHistogram:
    """Build a histogram from counts by length."""
    rows = []
    for lengths in (ended, cut_off):
        counts, tokens = [0] * LENGTH_BINS, [0] * LENGTH_BINS
        for length, times in lengths.items():
            counts[length_bin(length)] += times
            tokens[length_bin(length)] += times * length
        rows += [tuple(counts), tuple(tokens)]
    return LengthHistogram(*rows)


async def test_lengths_are_counted_by_how_answers_ended(subject: Subject) -> None:
    """Only a stopped answer is complete; an answer without tokens does not count."""
    store = subject.store
    await alive(store, A)
    await enqueued(store, *range(9))
    assert (await _chat(store)).lengths == NO_LENGTHS
    assert (await _chat(store)).mean_output_tokens is None
    await _ended(store, 1, Outcome.STOP, 9)
    await _ended(store, 2, Outcome.STOP, 10)
    await _ended(store, 3, Outcome.LENGTH, 100)
    await _ended(store, 4, Outcome.FAILED, 0)
    await store.cancel(metadata(5).id)
    view = await _chat(store)
    assert view.lengths == _histogram({9: 1, 10: 1}, {100: 1})
    assert (view.mean_output_tokens, view.finished) == (119 / 3, 3)
    await _ended(store, 6, Outcome.ENGINE_LOST, 97)
    assert (await _chat(store)).lengths == _histogram({9: 1, 10: 1}, {100: 1, 97: 1})


async def test_old_lengths_are_forgotten(subject: Subject) -> None:
    """The last window stays whole, what came before it goes at once."""
    store = subject.store
    await alive(store, A)
    await enqueued(store, *range(2 * LENGTHS_WINDOW + 3))
    for n in range(2 * LENGTHS_WINDOW):
        await _ended(store, n, Outcome.STOP, 1 if n < LENGTHS_WINDOW else 1000)
    assert (await _chat(store)).lengths == _histogram({1: LENGTHS_WINDOW, 1000: LENGTHS_WINDOW}, {})
    await _ended(store, 2 * LENGTHS_WINDOW, Outcome.STOP, 200_000)
    view = await _chat(store)
    assert view.lengths == _histogram({1000: LENGTHS_WINDOW, 200_000: 1}, {})
    assert view.finished == 2 * LENGTHS_WINDOW + 1


async def test_the_view_has_the_newest_arrival(subject: Subject) -> None:
    """Grouped and ungrouped waiting requests count."""
    store = subject.store
    await store.apply([CreateGroup(id=G1, cls=CHAT, count=2)])
    assert (await _chat(store)).newest_arrival_ns is None
    await enqueued(store, 1, 8, 5)
    assert (await _chat(store)).newest_arrival_ns == ARRIVAL_NS + 8
    await store.cancel(metadata(8).id)
    assert (await _chat(store)).newest_arrival_ns == ARRIVAL_NS + 5


async def test_an_idle_class_comes_back_with_what_was_learned(subject: Subject) -> None:
    store = subject.store
    await alive(store, A)
    await enqueued(store, 1)
    await _ended(store, 1, Outcome.STOP, 9)
    assert (await store.view()).classes == ()
    assert (await store.view()).classes == ()
    await enqueued(store, 2)
    view = await _chat(store)
    assert (view.queued, view.accepted, view.lengths) == (1, 2, _histogram({9: 1}, {}))


async def test_a_leased_request_waits_again_in_a_class_gone_idle(subject: Subject) -> None:
    store = subject.store
    await alive(store, A)
    await enqueued(store, 1)
    epoch = await leased(store, 1, A)
    assert (await store.view()).classes == ()
    assert await store.release(metadata(1).id, epoch, "test")
    assert (await _chat(store)).queued == 1
