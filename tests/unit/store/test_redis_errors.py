"""Which errors of Redis are an outage, and which concern one operation."""

import pytest
from redis._parsers.base import BaseParser
from redis.exceptions import ConnectionError, InvalidResponse, RedisError, TimeoutError

from qlm.domain.errors import StoreDataError, StoreUnavailableError
from qlm.store.redis.errors import readable, readable_ones, translated_errors

STATES = (
    "NOREPLICAS Not enough good replicas to write.",
    "MISCONF Errors writing to the AOF file: No space left on device",
    "OOM command not allowed when used memory > 'maxmemory'.",
    "READONLY You can't write against a read only replica.",
    "LOADING Redis is loading the dataset in memory",
    "BUSY Redis is busy running a script.",
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    "CLUSTERDOWN The cluster is down",
    "TRYAGAIN Multiple keys request during rehashing of slot",
    "NOAUTH Authentication required.",
    "NOPERM this user has no permissions to run the 'evalsha' command",
    "ERR The user executing the script can't run this command or subcommand script: f_1, on @user_script:9.",
    "ERR ACL failure in script: User default has no permissions to run the 'hset' command script: f_1, on "
    "@user_script:9.",
    "NEWCODE that no version of the client knows",
    "ERR max number of clients reached",
    "ERR Error running script (call to f_1): @user_script:1: @user_script: 1: -OOM command not allowed",
)
DATA = (
    "WRONGTYPE Operation against a key holding the wrong kind of value script: f_1, on @user_script:9.",
    "ERR user_script:12: attempt to perform arithmetic on a nil value script: 1, on @user_script:12.",
    "ERR value is not an integer or out of range",
    "ERR unknown command 'XYZ', with args beginning with: ",
)


def _raised(answer: str) -> RedisError:
    error: RedisError = BaseParser.parse_error(answer)  # type: ignore[no-untyped-call]
    return error


@pytest.mark.parametrize("answer", STATES)
def test_a_state_of_the_server_is_an_outage_though_the_client_has_no_class_for_it(answer: str) -> None:
    with pytest.raises(StoreUnavailableError), translated_errors("redis://here"):
        raise _raised(answer)


@pytest.mark.parametrize("answer", DATA)
def test_an_error_of_the_operation_is_about_its_data(answer: str) -> None:
    with pytest.raises(StoreDataError), translated_errors("redis://here"):
        raise _raised(answer)


@pytest.mark.parametrize(
    "error", [ConnectionError("reset"), TimeoutError("late"), OSError("no route"), InvalidResponse("bits")]
)
def test_a_way_that_is_cut_or_disturbed_is_an_outage(error: Exception) -> None:
    with pytest.raises(StoreUnavailableError), translated_errors("redis://here"):
        raise error


@pytest.mark.parametrize("error", [KeyError("state"), ValueError("no state"), TypeError(), AttributeError()])
def test_what_cannot_be_decoded_is_about_the_data(error: Exception) -> None:
    with pytest.raises(StoreDataError, match="cannot be read"), readable():
        raise error


def test_a_damaged_part_of_a_reply_leaves_the_others() -> None:
    assert readable_ones(int, [b"1", b"x", b"3"]) == [1, 3]
