"""Messages show as much of a value as a reader needs, and any value can be shown."""

import pytest

from qlm.domain.errors import InvalidValueError
from qlm.domain.shown import DIGITS_MAX, SHOWN_CHARACTERS_MAX, cut, shown, without_password, without_passwords


def test_what_is_short_is_shown_whole() -> None:
    assert [shown(value) for value in (12, "x", None, [1.5])] == ["12", "'x'", "None", "[1.5]"]
    assert cut("x" * SHOWN_CHARACTERS_MAX) == "x" * SHOWN_CHARACTERS_MAX


def test_what_is_long_is_cut() -> None:
    assert shown("x" * 1000) == f"'{'x' * 199}… (1002 characters)"
    assert shown(10**1000) == f"1{'0' * 199}… (1001 characters)"
    assert cut("abcdef", 3) == "abc… (6 characters)"


@pytest.mark.parametrize("sign", [1, -1])
def test_of_a_number_that_python_does_not_write_the_digits_are_counted(sign: int) -> None:
    assert shown(sign * 10**6000) == "a whole number of 6001 digits"
    assert shown([sign * 10**6000]) == "a list that holds a number of thousands of digits"
    assert len(shown(10 ** (DIGITS_MAX - 1))) < 300


def test_what_has_too_many_levels_to_be_written_is_shown() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert shown(deep) == "a list with hundreds of levels"
    assert "a dict with hundreds of levels" in str(InvalidValueError("slo", {"a": deep}, "a number"))


@pytest.mark.parametrize("digits", [4001, 4300, 5000, 33_000])
def test_digits_are_counted_right(digits: int) -> None:
    for number in (10 ** (digits - 1), 10**digits - 1):
        assert shown(number) == f"a whole number of {digits} digits"


def test_an_error_about_a_huge_number_can_be_raised() -> None:
    with pytest.raises(InvalidValueError, match=r"seed is a whole number of 9001 digits; expected less"):
        raise InvalidValueError("seed", 10**9000, "less")


@pytest.mark.parametrize(
    ("address", "kept"),
    [
        ("redis://u:se/c@ret@h:1/0?password=secret", "redis://***@h:1/0?***"),
        ("http://h:4318", "http://h:4318"),
        ("amqp://u:se cret@\nh", "amqp://***@\nh"),
        ("u:secret@h:5672", "***@h:5672"),
        ("amqp:/u:se//cret@h", "***@h"),
        ("amqp//u:secret@h", "amqp//***@h"),
        ("//u:secret@h", "//***@h"),
        ("a b://u:secret@h", "***@h"),
    ],
)
def test_addresses_are_shown_without_secrets(address: str, kept: str) -> None:
    assert without_password(address) == kept


def test_a_text_is_shown_without_passwords_of_addresses_in_it() -> None:
    text = "broker: 'amqp://u:secret@h/', mail me@h, //a@b"
    assert without_passwords(text) == "broker: 'amqp://***@h/', mail me@h, //***@b"
