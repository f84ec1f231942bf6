"""Webhooks: signatures, addresses, pauses, and events of ends."""

import base64
import itertools
from ipaddress import ip_address, ip_network
from typing import Any, get_args

import openai
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qlm.cli.webhooks.section import EventType
from qlm.domain.outcome import Outcome
from qlm.domain.ports.outbox import EndEvent
from qlm.gateway.outbound.addresses import AddressRefusedError, guarded_socket, is_allowed
from qlm.gateway.webhooks.backoff import SPARE_MAX_S, busy_max_s, pause_s, spare_s
from qlm.gateway.webhooks.endpoints import BATCH_EVENTS, RESPONSE_EVENTS, Endpoint, Webhooks
from qlm.gateway.webhooks.events import event_body, event_id, event_type
from qlm.gateway.webhooks.limits import WebhookLimits
from qlm.gateway.webhooks.signature import secret_key, signed_headers
from support.webhooks import KEY, SECRET

OTHER = "whsec_" + base64.b64encode(b"another secret of some length").decode()
NOW_S = 1_700_000_000


def end(subject: str = "abc", ended_as: str = "stop", at_ns: int = NOW_S * 10**9) -> EndEvent:
    return EndEvent(subject=subject, ended_as=ended_as, tenant="a", at_ns=at_ns)


@pytest.mark.parametrize("secret", [SECRET, OTHER])
def test_openais_client_accepts_what_is_signed_with_either_secret(
    secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: NOW_S)
    body = event_body(end())
    headers = signed_headers(event_id(end()), NOW_S, body, (KEY, secret_key(OTHER)))
    client = openai.OpenAI(api_key="any")
    event = client.webhooks.unwrap(body, headers, secret=secret)
    assert event.type == "response.completed" and event.data.id == "resp_abc"
    with pytest.raises(openai.InvalidWebhookSignatureError):
        client.webhooks.unwrap(body + b" ", headers, secret=secret)
    for changed in ({"webhook-id": "evt_other"}, {"webhook-timestamp": str(NOW_S + 1)}):
        with pytest.raises(openai.InvalidWebhookSignatureError):
            client.webhooks.unwrap(body, headers | changed, secret=secret)


def test_the_signature_is_that_of_the_standard_s_example() -> None:
    # https://github.com/standard-webhooks/standard-webhooks, the test of its libraries
    headers = signed_headers(
        "msg_p5jXN8AQM9LWM0D4loKWxJek",
        1_614_265_330,
        b'{"test": 2432232314}',
        [secret_key("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")],
    )
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize("text", ["", "confidential", "whsec_", "whsec_????", "whsec_c2hvcnQ=", SECRET[6:]])
def test_what_is_no_secret_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(ValueError, match="expected whsec_ and 24 to 64 bytes") as caught:
        secret_key(text)
    assert text in ("", "whsec_") or text.removeprefix("whsec_") not in str(caught.value)


@pytest.mark.parametrize(
    ("ended_as", "type"),
    [
        ("stop", "response.completed"),
        ("length", "response.incomplete"),
        ("cancelled", "response.cancelled"),
        *((each.value, "response.failed") for each in Outcome if not each.ok and each != "cancelled"),
        ("an outcome of a later version", "response.failed"),
    ],
)
def test_the_event_of_a_response_says_how_it_ended(ended_as: str, type: str) -> None:
    assert event_type(end(ended_as=ended_as)) == type
    assert type in RESPONSE_EVENTS


def test_the_body_names_the_batch_and_has_no_more() -> None:
    batch = end("batch_" + "0" * 32, "expired")
    assert orjson.loads(event_body(batch)) == {
        "id": event_id(batch),
        "object": "event",
        "created_at": NOW_S,
        "type": "batch.expired",
        "data": {"id": batch.subject},
    }
    assert event_type(batch) in BATCH_EVENTS


def test_an_id_is_that_of_one_end() -> None:
    assert event_id(end()) == event_id(end())
    assert len({event_id(end()), event_id(end("abd")), event_id(end(at_ns=1))}) == 3


def test_the_configuration_knows_each_type() -> None:
    assert get_args(EventType) == (*RESPONSE_EVENTS, *BATCH_EVENTS)


@pytest.mark.parametrize(
    "text",
    [
        *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.0.1", "169.254.169.254", "0.0.0.0", "100.64.0.1"),
        *("224.0.0.1", "255.255.255.255", "192.0.2.1", "::1", "::", "fe80::1", "fc00::1", "ff02::1"),
        *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a00:1", "2002:7f00:1::1"),
        *("2001:0:7f00:1::1", "64:ff9b:1::1", "2001:db8::1", "fec0::1", "192.0.0.9", "192.0.0.192"),
        *("3fff::1", "5f00::1", "4000::1", "::ffff:0:10.0.0.1", "::10.0.0.1", "168.63.129.16"),
        *("::ffff:168.63.129.16", "64:ff9b::192.0.0.9"),
    ],
)
def test_events_are_not_sent_to_addresses_that_are_not_public(text: str) -> None:
    address = ip_address(text)
    assert not is_allowed(address, ())
    assert not is_allowed(address, [ip_network("203.0.113.0/24")])


@pytest.mark.parametrize(
    "text", ["1.1.1.1", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101", "2002:101:101::1"]
)
def test_events_are_sent_to_public_addresses(text: str) -> None:
    assert is_allowed(ip_address(text), ())


def test_networks_that_are_allowed_are_sent_to() -> None:
    networks = [ip_network("10.1.0.0/16"), ip_network("fd00::/8"), ip_network("::1/128")]
    named = ("10.1.9.9", "::ffff:10.1.0.1", "fd00::1", "::1")
    assert all(is_allowed(ip_address(each), networks) for each in named)
    assert not is_allowed(ip_address("10.2.0.1"), networks)


def test_no_socket_is_made_for_an_address_that_is_refused() -> None:
    make = guarded_socket([ip_network("127.0.0.2/32")], "webhooks.allowed_networks")
    info: tuple[Any, ...] = (2, 1, 6, "", ("127.0.0.1", 80))
    with pytest.raises(AddressRefusedError, match=r"127\.0\.0\.1 is not public"):
        make(info)
    with pytest.raises(AddressRefusedError):
        make((10, 1, 6, "", ("fe80::1%eth0", 80, 0, 2)))
    make((2, 1, 6, "", ("127.0.0.2", 80))).close()


@given(st.integers(1, 10_000), st.floats(0, 1))
def test_pauses_double_up_to_the_longest_and_are_drawn_from_their_upper_half(n: int, chance: float) -> None:
    limits = WebhookLimits(retry_first_s=4, retry_max_s=1000)
    longest_s = min(4 * 2 ** (n - 1), 1000)
    assert longest_s / 2 <= pause_s(n, limits, chance) <= longest_s
    pauses = [pause_s(each, limits, chance) for each in range(1, 12)]
    assert all(a <= b for a, b in itertools.pairwise(pauses))


@given(st.integers(1, 10_000), st.floats(0, 1))
def test_pauses_of_a_spared_event_double_with_each_claim(claims: int, chance: float) -> None:
    longest_s = min(2 ** (claims - 1), SPARE_MAX_S)
    assert longest_s / 2 <= spare_s(claims, SPARE_MAX_S, chance) <= longest_s


@pytest.mark.parametrize(("waiting", "longest_s"), [(0, 4), (400, 4), (3000, 30), (6000, 60), (100_000, 60)])
def test_the_pause_for_a_busy_endpoint_is_short_while_few_events_wait(waiting: int, longest_s: float) -> None:
    assert busy_max_s(waiting) == longest_s


def test_an_endpoint_gets_its_types_of_its_tenants() -> None:
    def endpoint(name: str, *events: str, tenants: tuple[str, ...] | None = None) -> Endpoint:
        of = None if tenants is None else frozenset(tenants)
        return Endpoint(name=name, url="https://a", secrets=(KEY,), events=frozenset(events), tenants=of)

    webhooks = Webhooks(
        endpoints=[
            endpoint("all", *RESPONSE_EVENTS, *BATCH_EVENTS),
            endpoint("batches", *BATCH_EVENTS),
            endpoint("theirs", *RESPONSE_EVENTS, tenants=("b",)),
        ]
    )
    assert [each.name for each in webhooks.receivers(["batch.failed"], "a")] == ["all", "batches"]
    assert [each.name for each in webhooks.receivers(RESPONSE_EVENTS, "a")] == ["all"]
    assert [each.name for each in webhooks.receivers(["response.failed"], "b")] == ["all", "theirs"]
    assert SECRET not in repr(webhooks) and str(KEY) not in repr(webhooks)
