from qlm.gateway.sessions.idempotency import fingerprint, keyed_id


def test_the_same_key_of_the_same_tenant_gives_the_same_id() -> None:
    assert keyed_id("a", "k", 0) == keyed_id("a", "k", 0)


def test_ids_differ_by_tenant_key_and_attempt() -> None:
    ids = {keyed_id("a", "k", 0), keyed_id("b", "k", 0), keyed_id("a", "l", 0), keyed_id("a", "k", 1)}
    assert len(ids | {keyed_id("ak", "", 0), keyed_id("", "ak", 0)}) == 6


def test_the_fingerprint_ignores_the_order_of_fields_only() -> None:
    assert fingerprint({"a": 1, "b": [1, 2]}) == fingerprint({"b": [1, 2], "a": 1})
    assert fingerprint({"a": 1}) != fingerprint({"a": 2})
    assert fingerprint({"b": [1, 2]}) != fingerprint({"b": [2, 1]})
