"""What is hot in a simulation can be compiled."""

from benchmarks.compiled import translate


def test_mypyc_translates_all_that_is_compiled() -> None:
    translate()
