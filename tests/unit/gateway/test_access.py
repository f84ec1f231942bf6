import pytest

from qlm.gateway.core.access import AccessRules, is_loopback

NAMED = AccessRules(listens_on="0.0.0.0", hosts=("qlm.example.com",))


@pytest.mark.parametrize("listens_on", ["127.0.0.1", "::1", "localhost", "127.0.0.5"])
def test_a_listener_on_loopback_has_the_names_of_loopback(listens_on: str) -> None:
    rules = AccessRules(listens_on=listens_on, hosts=("qlm.local",))
    for host in ("localhost", "127.0.0.1:8000", "[::1]:8000", "QLM.local:8000", listens_on.strip("[]")):
        assert rules.accepts_host(f"[{host}]" if host == "::1" else host), host
    for host in ("evil.example", "10.0.0.1", "qlm.local.evil.example", "", "a b", "localhost:80:80", "[::1"):
        assert not rules.accepts_host(host), host


def test_beyond_loopback_any_name_is_accepted_until_some_are_configured() -> None:
    assert AccessRules(listens_on="0.0.0.0").accepts_host("anything.example")
    assert not NAMED.accepts_host("anything.example")


@pytest.mark.parametrize("host", ["qlm.example.com", "qlm.example.com:8000", "10.1.2.3:8000", "localhost"])
def test_probes_reach_a_listener_with_names_by_its_address(host: str) -> None:
    assert NAMED.accepts_host(host)


def test_an_origin_is_accepted_as_a_whole() -> None:
    rules = AccessRules(origins=("https://chat.example.com",))
    assert rules.accepts_origin("https://chat.example.com")
    for origin in ("https://chat.example.com:444", "http://chat.example.com", "null", ""):
        assert not rules.accepts_origin(origin)


def test_loopback_is_what_only_this_machine_reaches() -> None:
    assert [is_loopback(each) for each in ("127.9.9.9", "::1", "localhost")] == [True] * 3
    assert [is_loopback(each) for each in ("0.0.0.0", "::", "10.0.0.1", "host.example")] == [False] * 4


@pytest.mark.parametrize("rules", [AccessRules(), NAMED])
def test_a_page_of_the_listener_itself_is_known_by_the_host_that_it_was_called_by(rules: AccessRules) -> None:
    assert rules.accepts_own_page("http://localhost:8090", "localhost:8090")
    assert rules.accepts_own_page("https://LOCALHOST:8090", "localhost:8090")
    for origin in (
        "http://localhost",
        "http://localhost:8091",
        "null",
        "",
        "ftp://localhost:8090",
        "localhost:8090",
    ):
        assert not rules.accepts_own_page(origin, "localhost:8090"), origin


def test_a_page_of_a_strange_name_is_not_the_listeners() -> None:
    assert not AccessRules().accepts_own_page("http://evil.example", "evil.example")
