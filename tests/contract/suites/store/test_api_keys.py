"""Contract of every store: API keys are added, listed by age, and removed."""

from dataclasses import replace

from contract.suites.store.values import Subject
from qlm.domain.ports.api_keys import ApiKey, Scope

FIRST = ApiKey(id="key_b", digest="1" * 64, tenant="équipe", scopes=(Scope.INFER,), created_ns=1)
SECOND = ApiKey(
    id="key_a", digest="2" * 64, tenant="b", scopes=tuple(Scope), created_ns=2**60, expires_ns=2**61
)


async def test_keys_are_listed_by_age(subject: Subject) -> None:
    store = subject.store
    assert list(await store.api_keys()) == []
    for key in (SECOND, FIRST):
        await store.add_api_key(key)
    assert list(await store.api_keys()) == [FIRST, SECOND]


async def test_a_key_of_the_same_id_is_replaced(subject: Subject) -> None:
    for key in (FIRST, renamed := replace(FIRST, tenant="c")):
        await subject.store.add_api_key(key)
    assert list(await subject.store.api_keys()) == [renamed]


async def test_a_removed_key_is_gone(subject: Subject) -> None:
    store = subject.store
    for key in (FIRST, SECOND):
        await store.add_api_key(key)
    assert await store.remove_api_key(FIRST.id)
    assert not await store.remove_api_key(FIRST.id)
    assert list(await store.api_keys()) == [SECOND]
