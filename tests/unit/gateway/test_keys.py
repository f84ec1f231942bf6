"""API keys as a gateway knows them, and what it asks of callers."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import pytest

from qlm.domain.errors import InvalidValueError, StoreDataError, StoreUnavailableError
from qlm.domain.formats.durations import duration_s
from qlm.domain.ports.api_keys import ApiKey, Scope
from qlm.domain.shell.faults import FaultKind, FaultLog
from qlm.gateway.api.callers import Headers
from qlm.gateway.api.errors import ApiError
from qlm.gateway.core.access import AccessRules
from qlm.gateway.keys.asking import asked_key, operator_refusal
from qlm.gateway.keys.key_ring import FRESH_S, READS_APART_S, STALE_MAX_S, KeyRing
from qlm.gateway.keys.missing import missing_keys
from qlm.gateway.keys.secret import digest_of, make_key
from qlm.store.embedded.api_keys import MemoryApiKeys

SECRET = "sk-qlm-of-a"
KEY = ApiKey(id="key_a", digest=digest_of(SECRET), tenant="a", scopes=(Scope.INFER,), created_ns=0)
OPERATOR = replace(KEY, id="key_o", digest=digest_of("sk-qlm-of-o"), scopes=(Scope.ADMIN,))

NOW_NS: Final = 1_000_000_000_000


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def now_ns(self) -> int:
        return round(self.now_s * 1e9)


class Store(MemoryApiKeys):
    """Keys in memory that count how often they are read, and may be away or fail otherwise."""

    reads = 0
    away = False
    error: Exception | None = None

    async def api_keys(self) -> Sequence[ApiKey]:
        self.reads += 1
        if self.away:
            raise StoreUnavailableError("away")
        if self.error is not None:
            raise self.error
        return await super().api_keys()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def store() -> Store:
    made = Store()
    await made.add_api_key(KEY)
    await made.add_api_key(OPERATOR)
    return made


@pytest.fixture
def counted() -> list[FaultKind]:
    """Failures that were counted."""
    return []


@pytest.fixture
def ring(store: Store, clock: Clock, counted: list[FaultKind]) -> KeyRing:
    return KeyRing(store, clock, FaultLog(counted.append))


def headers(**given: str) -> Headers:
    named = {name.replace("_", "-"): [value] for name, value in given.items()}
    return lambda name: named.get(name, [])


async def test_known_keys_are_looked_up_in_memory(ring: KeyRing, store: Store, clock: Clock) -> None:
    for _ in range(3):
        assert await ring.find(SECRET) == KEY
    assert store.reads == 1
    clock.now_s += FRESH_S
    assert await ring.find(SECRET) == KEY
    assert store.reads == 2


async def test_a_revoked_key_is_refused_soon(ring: KeyRing, store: Store, clock: Clock) -> None:
    assert await ring.find(SECRET) == KEY
    await store.remove_api_key(KEY.id)
    clock.now_s += FRESH_S
    assert await ring.find(SECRET) is None


async def test_a_new_key_is_found_at_once_and_wrong_ones_share_reads(
    ring: KeyRing, store: Store, clock: Clock
) -> None:
    assert await ring.find("sk-qlm-wrong") is None
    clock.now_s += READS_APART_S
    await store.add_api_key(new := replace(KEY, id="key_n", digest=digest_of("sk-qlm-new")))
    reads = store.reads
    found = await asyncio.gather(*(ring.find(f"sk-qlm-{each}") for each in ("new", *range(50))))
    assert found == [new, *([None] * 50)]
    assert store.reads == reads + 1


async def test_known_keys_count_for_a_while_without_the_store(
    ring: KeyRing, store: Store, clock: Clock
) -> None:
    assert await ring.find(SECRET) == KEY
    store.away = True
    clock.now_s += STALE_MAX_S - 1
    assert await ring.find(SECRET) == KEY
    clock.now_s += 1
    with pytest.raises(StoreUnavailableError):
        await ring.find(SECRET)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (StoreUnavailableError("away"), FaultKind.UNAVAILABLE),
        (StoreDataError("WRONGTYPE of confidential"), FaultKind.REFUSED),
        (ZeroDivisionError("confidential"), FaultKind.BUG),
    ],
)
async def test_known_keys_count_for_a_while_whatever_the_failure(
    ring: KeyRing,
    store: Store,
    clock: Clock,
    error: Exception,
    kind: FaultKind,
    counted: list[FaultKind],
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert await ring.find(SECRET) == KEY
    store.error = error
    for _ in range(3):
        clock.now_s += FRESH_S
        assert await ring.find(SECRET) == KEY
    with pytest.raises(StoreUnavailableError) as unknown:
        await ring.find("sk-qlm-new")
    clock.now_s += STALE_MAX_S
    with pytest.raises(StoreUnavailableError) as stale:
        await ring.find(SECRET)
    assert not any("confidential" in str(each.value) for each in (unknown, stale))
    assert caplog.text.count("the API keys cannot be read") == (kind is not FaultKind.UNAVAILABLE)
    assert counted == [kind] * 4, "the call with an unknown key shares the failed read"
    store.error = None
    clock.now_s += FRESH_S
    assert await ring.find(SECRET) == KEY


async def test_a_first_read_that_fails_is_no_wrong_key(ring: KeyRing, store: Store) -> None:
    store.error = StoreDataError("WRONGTYPE")
    with pytest.raises(StoreUnavailableError, match="the API keys cannot be read"):
        await ring.find(SECRET)


async def test_calls_share_a_failed_read(ring: KeyRing, store: Store, clock: Clock) -> None:
    assert await ring.find(SECRET) == KEY
    store.away, reads = True, store.reads
    clock.now_s += FRESH_S
    assert await asyncio.gather(*(ring.find(SECRET) for _ in range(20))) == [KEY] * 20
    clock.now_s += STALE_MAX_S
    errors = await asyncio.gather(*(ring.find(SECRET) for _ in range(20)), return_exceptions=True)
    assert [str(each) for each in errors if isinstance(each, StoreUnavailableError)] == ["away"] * 20
    assert store.reads == reads + 2


async def test_whether_a_key_is_new_is_not_known_without_the_store(
    ring: KeyRing, store: Store, clock: Clock
) -> None:
    assert await ring.find(SECRET) == KEY
    store.away = True
    clock.now_s += FRESH_S
    assert await ring.find(SECRET) == KEY
    with pytest.raises(StoreUnavailableError):
        await ring.find("sk-qlm-new")
    store.away = False
    clock.now_s += READS_APART_S
    assert await ring.find("sk-qlm-new") is None


async def test_keys_do_not_stay_when_the_clock_is_set_back(ring: KeyRing, store: Store, clock: Clock) -> None:
    assert await ring.find(SECRET) == KEY
    await store.remove_api_key(KEY.id)
    clock.now_s -= 500
    assert await ring.find(SECRET) is None


@pytest.mark.parametrize(
    "given",
    [
        headers(authorization=f"Bearer {SECRET}"),
        headers(authorization=f"bearer  {SECRET} "),
        headers(x_api_key=SECRET),
        headers(authorization=f"Basic {SECRET}", x_api_key=SECRET),
    ],
)
async def test_a_key_comes_in_either_header(ring: KeyRing, given: Headers) -> None:
    assert await asked_key(ring, given, Scope.INFER, 0) == KEY


@pytest.mark.parametrize(
    ("given", "scope", "at_ns", "expected"),
    [
        (headers(), Scope.INFER, 0, (401, "invalid_api_key", "missing")),
        (headers(authorization="Bearer "), Scope.INFER, 0, (401, "invalid_api_key", "missing")),
        (headers(authorization="Bearer x"), Scope.INFER, 0, (401, "invalid_api_key", "wrong")),
        (headers(authorization="Bearer \udcff"), Scope.INFER, 0, (401, "invalid_api_key", "wrong")),
        (headers(authorization=f"Bearer {SECRET}"), Scope.ADMIN, 0, (403, "missing_scope", "admin")),
        (headers(authorization="Bearer old"), Scope.INFER, 5, (401, "invalid_api_key", "has expired")),
    ],
)
async def test_a_call_without_a_good_key_is_refused(
    ring: KeyRing,
    store: Store,
    given: Headers,
    scope: Scope,
    at_ns: int,
    expected: tuple[int, str, str],
) -> None:
    await store.add_api_key(replace(KEY, id="key_x", digest=digest_of("old"), expires_ns=5))
    with pytest.raises(ApiError) as caught:
        await asked_key(ring, given, scope, at_ns)
    status, code, part = expected
    assert (caught.value.status, caught.value.code) == (status, code)
    assert part in caught.value.message
    assert SECRET not in caught.value.message


async def test_an_operator_shows_the_admin_token_or_a_key_with_that_scope(ring: KeyRing) -> None:
    rules = AccessRules(token="of-the-operators")

    async def refusal(secret: str | None) -> str | None:
        given = headers() if secret is None else headers(authorization=f"Bearer {secret}")
        error = await operator_refusal(ring, given, rules, 0)
        return None if error is None else error.code

    assert [await refusal(each) for each in ("of-the-operators", "sk-qlm-of-o")] == [None, None]
    assert [await refusal(each) for each in (None, "wrong")] == ["admin_token_required"] * 2
    assert await refusal(SECRET) == "missing_scope"


async def test_an_operator_needs_no_key_on_loopback_without_a_token(ring: KeyRing, store: Store) -> None:
    assert await operator_refusal(ring, headers(authorization="Bearer x"), AccessRules(), 0) is None
    assert store.reads == 0


def test_a_secret_is_not_stored() -> None:
    key, secret = make_key("a", [Scope.ADMIN, Scope.INFER], None, 7, lambda size: "ab" * size)
    assert secret == "sk-qlm-" + "ab" * 32
    assert secret not in repr(key) and secret not in (key.digest, key.id)
    assert (key.digest, key.scopes, key.created_ns) == (digest_of(secret), tuple(Scope), 7)


def test_durations_are_read_and_bounded() -> None:
    given = {"90s": 90, "30m": 1800, "24h": 86_400, "7d": 604_800}
    assert {text: duration_s("window", text, 60, 604_800) for text in given} == given
    for text in ("", "24", "24 h", "0h", "1w", "-1h", "59s", "8d", "1e3s", "²h"):
        with pytest.raises(InvalidValueError, match="from 1m to 7d"):
            duration_s("window", text, 60, 604_800)


async def test_keys_that_are_gone_are_logged_once(
    ring: KeyRing, store: Store, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    assert await ring.find(SECRET) == KEY
    for key in (KEY, OPERATOR):
        await store.remove_api_key(key.id)
    for _ in range(3):
        clock.now_s += 60.0
        assert await ring.find(SECRET) is None
    assert caplog.text.count("all 2 API keys are gone") == 1


async def test_a_deployment_that_needs_keys_and_has_none_is_warned(store: Store) -> None:
    assert await missing_keys(store, NOW_NS, required=True) == ()
    await store.remove_api_key(KEY.id)
    await store.add_api_key(replace(KEY, expires_ns=NOW_NS))
    (warning,) = await missing_keys(store, NOW_NS, required=True)
    assert "each of the 2 API keys has expired or is for operators" in warning
    for key in (KEY, OPERATOR):
        await store.remove_api_key(key.id)
    assert await missing_keys(store, NOW_NS, required=False) == ()
    (warning,) = await missing_keys(store, NOW_NS, required=True)
    assert "qlm keys create" in warning


async def test_a_deployment_whose_keys_are_damaged_is_warned(store: Store) -> None:
    store.error = StoreDataError("WRONGTYPE")
    assert await missing_keys(store, NOW_NS, required=False) == ()
    (warning,) = await missing_keys(store, NOW_NS, required=True)
    assert "the API keys cannot be read: WRONGTYPE" in warning
