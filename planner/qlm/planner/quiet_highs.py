"""The solver HiGHS, silent, with one thread and a fixed seed."""

import highspy


def quiet_highs(**options: str | float) -> highspy.Highs:
    """Return an empty program; equal ones have equal solutions.

    Args:
        options: Further options of HiGHS by their names.
    """
    highs = highspy.Highs()  # type: ignore[no-untyped-call]  # highspy has no types for it
    for option, value in {"output_flag": False, "threads": 1, "random_seed": 0, **options}.items():
        highs.setOptionValue(option, value)
    return highs
