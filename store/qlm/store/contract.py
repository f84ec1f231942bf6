"""The contract of `qlm.domain.ports.store.Store`, as checks that run on every implementation."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Final

from qlm.store import (
    contract_leadership,
    contract_leases,
    contract_lengths,
    contract_output,
    contract_places,
    contract_plans,
    contract_requests,
)
from qlm.store.contract_values import Subject
from qlm.store.limits import StoreLimits

LIMITS: Final = StoreLimits(results_max=4, events_max=8, lengths_window=contract_lengths.WINDOW)
"""Small ones, which checks reach."""

SubjectFactory = Callable[[], AbstractAsyncContextManager[Subject]]
"""Makes a fresh, empty store with `LIMITS`, and lets go of it at the end."""

Check = Callable[[Subject], Awaitable[None]]

CHECKS: Final[tuple[Check, ...]] = (
    *contract_requests.CHECKS,
    *contract_leases.CHECKS,
    *contract_output.CHECKS,
    *contract_plans.CHECKS,
    *contract_leadership.CHECKS,
    *contract_places.CHECKS,
    *contract_lengths.CHECKS,
)
"""All checks; each raises AssertionError where a store differs."""


async def check_store(make: SubjectFactory) -> None:
    """Run every check on a store of its own."""
    for check in CHECKS:
        async with make() as subject:
            await check(subject)
