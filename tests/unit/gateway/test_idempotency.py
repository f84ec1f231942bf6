import hashlib
from dataclasses import replace

import orjson
import pytest

from contract.suites.store.values import metadata
from qlm.gateway.api.errors import ApiError
from qlm.gateway.sessions.idempotency import check_same_body, digests_of, fingerprint, keyed_id


def test_the_same_key_of_the_same_tenant_gives_the_same_id() -> None:
    assert keyed_id("a", "k", 0) == keyed_id("a", "k", 0)


def test_ids_differ_by_tenant_key_and_attempt() -> None:
    ids = {keyed_id("a", "k", 0), keyed_id("b", "k", 0), keyed_id("a", "l", 0), keyed_id("a", "k", 1)}
    assert len(ids | {keyed_id("ak", "", 0), keyed_id("", "ak", 0)}) == 6


def test_the_fingerprint_ignores_the_order_of_fields_only() -> None:
    assert fingerprint({"a": 1, "b": [1, 2]}) == fingerprint({"b": [1, 2], "a": 1})
    assert fingerprint({"a": 1}) != fingerprint({"a": 2})
    assert fingerprint({"b": [1, 2]}) != fingerprint({"b": [2, 1]})


def test_the_fingerprint_ignores_how_a_number_is_written() -> None:
    written = {"n": 5.0, "stop": ["5.0"], "slo": {"ttft_ms": 1e2}, "prompt": [1.0, 2], "top_p": 0.5}
    same = {"n": 5, "stop": ["5.0"], "slo": {"ttft_ms": 100}, "prompt": [1, 2], "top_p": 0.5}
    assert fingerprint(written) == fingerprint(same)
    assert fingerprint({"n": 5}) != fingerprint({"n": 5.5})
    assert fingerprint({"n": 1}) != fingerprint({"n": True})
    assert fingerprint({"n": 5}) != fingerprint({"n": "5"})
    assert fingerprint({"n": 1e300}) != fingerprint({"n": 1e301})


def test_a_request_of_an_earlier_version_is_found_again() -> None:
    body = {"prompt": "Once", "temperature": 1.0}
    before = hashlib.blake2b(orjson.dumps(body, option=orjson.OPT_SORT_KEYS), digest_size=16).hexdigest()
    check_same_body("k", replace(metadata(1), fingerprint=before), digests_of(body))
    with pytest.raises(ApiError):
        check_same_body(
            "k", replace(metadata(1), fingerprint=before), digests_of({**body, "temperature": 2.0})
        )
