"""Decisions about the marks of two servers, case by case."""

import pytest

from qlm.cli.deployment.rules import BROKER, STORE, Join, Refused, Seen, are_equal, decide, refusal
from qlm.domain.ports.deployment import DeploymentMark

FRESH = "fresh"


def of(id: str, *, lives: bool = False) -> Seen:
    return Seen(DeploymentMark(id=id, partner=f"partner-of-{id}"), lives)


NONE = Seen(None)


def test_equal_marks_are_joined_whoever_lives() -> None:
    assert decide((of("a"), of("a", lives=True)), FRESH) == Join("a")


def test_two_servers_without_a_mark_are_marked_at_once() -> None:
    assert decide((NONE, NONE), FRESH) == Join(FRESH)


@pytest.mark.parametrize("pair", [(of("a", lives=True), NONE), (NONE, of("a", lives=True))])
def test_a_server_of_a_deployment_that_lives_is_not_taken(pair: tuple[Seen, Seen]) -> None:
    assert decide(pair, FRESH) == Refused(may_change=True)


def test_a_deployment_without_members_gets_a_new_id_first_where_its_mark_is() -> None:
    """The former partner, if it comes back, has an id that the other one has no more."""
    of_broker = Join(FRESH, (BROKER, STORE), ("a", None), waits=True)
    assert decide((of("a"), NONE), FRESH) == of_broker
    assert decide((NONE, of("a")), FRESH) == Join(FRESH, (STORE, BROKER), (None, "a"), waits=True)


@pytest.mark.parametrize("adopts", [False, True])
@pytest.mark.parametrize("lives", [(True, False), (False, True), (True, True)])
def test_servers_of_different_deployments_are_no_pair(lives: tuple[bool, bool], adopts: bool) -> None:
    pair = (of("a", lives=lives[0]), of("b", lives=lives[1]))
    assert decide(pair, FRESH, adopts=adopts) == Refused(may_change=True)


def test_servers_of_different_deployments_that_ended_are_a_pair_only_if_adopted() -> None:
    pair = (of("a"), of("b"))
    assert decide(pair, FRESH) == Refused(may_change=False)
    assert decide(pair, FRESH, adopts=True) == Join(FRESH, (BROKER, STORE), ("a", "b"), waits=True)


def test_equality_needs_two_marks() -> None:
    assert not are_equal(None, None)
    assert not are_equal(of("a").mark, None)


def test_the_refusal_names_ids_addresses_and_ways_out() -> None:
    addresses = ("amqp://rabbit:5672/", "redis://redis:6379/0")
    text = refusal("qlm", addresses, (of("a1", lives=True), of("b2")))
    assert text == (
        "two deployments have the deployment_name 'qlm': RabbitMQ at amqp://rabbit:5672/ is of the running "
        "deployment a1 with Redis at partner-of-a1 and Redis at redis://redis:6379/0 is of the deployment b2 "
        "with RabbitMQ at partner-of-b2; give this one another deployment_name, or, if a server was replaced "
        "and no other deployment uses it, stop all processes and run qlm adopt"
    )
    assert "Redis at redis://redis:6379/0 is of none yet" in refusal("qlm", addresses, (of("a1"), NONE))
