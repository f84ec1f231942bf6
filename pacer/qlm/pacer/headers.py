"""Request headers that ask a QLM gateway for a pace."""

from qlm.domain.errors import InvalidValueError


def headers(tokens_per_s: float) -> dict[str, str]:
    """Return the headers that ask for tokens at a pace: that at which a pacer will release them.

    Raises:
        InvalidValueError: The pace is not above 0.
    """
    if not 0 < tokens_per_s < float("inf"):
        raise InvalidValueError("tokens_per_s", tokens_per_s, "a number above 0")
    return {"x-slo-tokens-per-s": f"{tokens_per_s:.12g}"}
