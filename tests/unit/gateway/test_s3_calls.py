"""Calls of S3-compatible storage: which are tried again, for how long, and what a silent one costs."""

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Barrier, Event, Thread

import pytest
from botocore.exceptions import ClientError, ConnectTimeoutError, EndpointConnectionError, ReadTimeoutError

from qlm.domain.errors import StorageUnavailableError
from qlm.gateway.files.s3.calls import Calls
from qlm.gateway.files.s3.errors import StorageRefusedError, as_qlm

TIMEOUT_S = 10.0


@dataclass(slots=True)
class Server:
    """A server whose calls take time and fail as told; each entry is a time in seconds and an error."""

    fates: list[tuple[float, Exception | None]]
    now_s: float = 0.0
    begun_s: list[float] = field(default_factory=list)

    def call(self) -> str:
        self.begun_s.append(self.now_s)
        took_s, error = self.fates.pop(0)
        self.now_s += took_s
        if error is not None:
            raise error
        return "found"

    def sleep(self, pause_s: float) -> None:
        self.now_s += pause_s

    def calls(self, drawn: float = 1.0) -> Calls:
        return Calls("the bucket", TIMEOUT_S, lambda: self.now_s, self.sleep, lambda: drawn)


def silent() -> Exception:
    return ReadTimeoutError(endpoint_url="http://s3")


def refused() -> Exception:
    return EndpointConnectionError(endpoint_url="http://s3")


def answered(code: str, status: int) -> ClientError:
    meta = {"HTTPStatusCode": status}
    return ClientError({"Error": {"Code": code}, "ResponseMetadata": meta}, "GetObject")  # type: ignore[typeddict-item]


@pytest.mark.parametrize(
    "error",
    [
        refused(),
        silent(),
        ConnectTimeoutError(endpoint_url="http://s3"),
        ConnectionResetError(),
        answered("SlowDown", 503),
        answered("500", 500),
        answered("RequestTimeout", 400),
        answered("TooManyRequests", 429),
    ],
)
def test_what_may_pass_is_tried_again(error: Exception) -> None:
    server = Server([(0.0, error), (0.0, None)])
    assert server.calls().make(server.call) == "found"
    assert server.begun_s == [0.0, 1.0]


@pytest.mark.parametrize("error", [answered("NoSuchKey", 404), answered("AccessDenied", 403)])
def test_what_will_not_pass_is_not(error: ClientError) -> None:
    server = Server([(0.0, error)])
    with pytest.raises(ClientError):
        server.calls().make(server.call)


@pytest.mark.parametrize(
    ("took_s", "error", "tries", "ends_s"),
    [
        (0.0, refused, 3, 3.0),  # a fourth try would begin after 7 s
        (4.0, silent, 2, 9.0),  # as calls that move little
        (10.0, silent, 1, 10.0),  # as those that move much
        (6.0, refused, 1, 6.0),
    ],
)
def test_no_try_begins_in_the_second_half_of_the_time(
    took_s: float, error: Callable[[], Exception], tries: int, ends_s: float
) -> None:
    server = Server([(took_s, error()) for _ in range(tries)])
    with pytest.raises(StorageUnavailableError, match="the bucket cannot be reached"):
        server.calls().make(server.call)
    assert (len(server.begun_s), server.now_s) == (tries, ends_s)


def test_short_pauses_leave_time_for_four_tries() -> None:
    server = Server([(0.0, refused()) for _ in range(4)])
    with pytest.raises(StorageUnavailableError):
        server.calls(drawn=0.5).make(server.call)
    assert server.begun_s == [0.0, 0.5, 1.5, 3.5]


def ask(calls: Calls, call: Callable[[], str]) -> str:
    try:
        return calls.make(call)
    except StorageUnavailableError as error:
        return str(error)


def test_while_nothing_comes_one_call_tries_and_the_others_fail_at_once() -> None:
    server = Server([(4.0, silent()), (4.0, silent()), (0.0, None)])
    calls, begun, go = server.calls(), Event(), Event()
    assert "cannot be reached" in ask(calls, server.call)

    def trial() -> str:
        begun.set()
        go.wait()
        return server.call()

    found: list[str] = []
    trying = Thread(target=lambda: found.append(ask(calls, trial)))
    trying.start()
    begun.wait()
    assert ask(calls, server.call) == "the bucket does not answer"
    go.set()
    trying.join()
    assert found == ["found"]
    server.fates.append((0.0, None))
    assert ask(calls, server.call) == "found"


def test_a_call_that_met_silence_tries_again_only_if_no_other_does() -> None:
    calls = Server([]).calls(drawn=0.0)
    tried, again, given_up = {"first": 0, "second": 0}, Event(), Event()

    def first() -> str:
        tried["first"] += 1
        if tried["first"] == 2:
            again.set()
            assert given_up.wait(10)
        raise silent()

    trying = Thread(target=ask, args=(calls, first))

    def second() -> str:
        tried["second"] += 1
        if tried["second"] == 1:  # it began before the silence
            trying.start()
            assert again.wait(10)
        raise silent()

    assert "cannot be reached" in ask(calls, second)
    given_up.set()
    trying.join()
    assert tried["second"] == 1
    assert tried["first"] > 1


def test_a_call_without_an_answer_is_no_silence_while_others_have_one() -> None:
    server = Server([(4.0, None), (4.0, None)])
    calls = server.calls()

    def alone() -> str:
        assert ask(calls, server.call) == "found"
        server.now_s += 4.0
        raise silent()

    assert "cannot be reached" in ask(calls, alone)
    together = Barrier(2)

    def both() -> str:
        together.wait(10)
        return "found"

    found: list[str] = []
    other = Thread(target=lambda: found.append(ask(calls, both)))
    other.start()
    found.append(ask(calls, both))
    other.join()
    assert found == ["found", "found"]


def test_a_clock_that_is_wrong_is_named() -> None:
    error = as_qlm(answered("RequestTimeTooSkewed", 403), "the bucket")
    assert str(error) == "the bucket: the clocks of this machine and of the storage differ by minutes"
    assert not isinstance(error, StorageRefusedError)  # a clock may be set while a gateway runs
