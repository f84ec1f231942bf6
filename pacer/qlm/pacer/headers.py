"""Request headers that ask a QLM gateway for a pace."""

from qlm.domain.slo import check_pace


def headers(tokens_per_s: float) -> dict[str, str]:
    """Return the headers that ask for tokens at a pace: that at which a pacer will release them.

    Raises:
        InvalidValueError: The gateway would refuse the pace.
    """
    check_pace("tokens_per_s", tokens_per_s)
    return {"x-slo-tokens-per-s": f"{tokens_per_s:.12g}"}
