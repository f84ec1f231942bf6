"""The shipped fits, recomputed from what was transcribed, by the recipe that each file's sources state.

Sources: linear layers and all-reduce in ms by tokens in the batch, measured by Vidur
(github.com/microsoft/vidur @41ab8ab1, data/profiling, summed over the layers of the model); LMDeploy's
benchmark on the A100 (github.com/InternLM/lmdeploy @3e391df4, docs/en/benchmark/a100_fp16.md); Splitwise's
measurements (github.com/Mutinifni/splitwise-sim, data/perf_model.csv, medians).
"""

from collections.abc import Callable, Iterable

import pytest

from qlm.rct_estimator.profiles.builtin import builtin_profiles, find_profile
from qlm.rct_estimator.profiles.points import FitPoint, FitPoints
from qlm.rct_estimator.profiles.profile import Profile, SourceKind

Cost = Callable[[int], float]
Points = list[tuple[float, float, float]]

TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
LINEAR_MS = {
    "llama-3-8b A100": (9.763, 10.056, 10.206, 10.981, 11.334, 13.289, 19.631, 34.875, 75.615, 144.65),
    "llama-2-7b A100": (9.347, 9.128, 9.262, 9.604, 9.766, 12.345, 17.951, 33.613, 68.381, 134.479),
    "llama-2-7b H100": (5.634, 5.543, 5.852, 5.859, 5.924, 6.438, 9.257, 12.128, 21.278, 40.955),
    "llama-2-7b A40": (23.97, 24.23, 24.778, 26.516, 30.117, 30.375, 44.815, 71.772, 138.324, 262.047),
    "internlm-20b H100": (15.422, 15.397, 15.432, 15.364, 15.605, 16.837, 21.551, 33.109, 60.546, 123.36),
    "llama-2-7b 2xA40": (12.61, 12.39, 13.322, 14.243, 13.813, 15.527, 24.397, 38.713, 71.379, 138.596),
    "internlm-20b 2xA40": (35.642, 36.486, 36.79, 38.043, 39.425, 43.989, 65.777, 102.752, 203.823, 392.254),
    "llama-70b 2xH100": (25.682, 25.847, 26.011, 26.804, 27.046, 28.329, 32.935, 57.308, 116.374, 221.656),
    "llama-70b 4xH100": (14.482, 15.127, 14.691, 15.484, 15.446, 16.169, 19.535, 30.588, 63.253, 114.647),
}
ALL_REDUCE_MS = {
    "llama-70b 2xH100": (1.96, 3.32, 4.48, 2.2, 4.48, 4.8, 5.76, 9.12, 15.84, 29.92),
    "llama-70b 4xH100": (6.08, 6.64, 6.68, 6.96, 6.56, 5.44, 7.52, 9.92, 14.96, 26.72),
}
LMDEPLOY: dict[tuple[str, str, int], tuple[Points, Points]] = {
    ("vicuna-13b", "A100", 1): (
        [(1, 128, 39), (1, 2048, 242)],
        [
            *((1, 192, 17), (1, 2112, 19), (16, 192, 19), (16, 1152, 26)),
            *((32, 192, 21), (32, 1152, 34), (64, 192, 24)),
        ],
    ),
    ("llama-70b", "A100", 4): (
        [(1, 128, 73), (1, 2048, 401)],
        [(1, 192, 29), (1, 2112, 31), (16, 1152, 33), (32, 1152, 36), (64, 1152, 43)],
    ),
}
SPLITWISE: dict[tuple[str, str, int], tuple[Points, Points]] = {
    ("llama-70b", "A100", 2): (
        [(1, 128, 81.08), (1, 256, 112.93), (1, 512, 196.86), (1, 1024, 377.06), (1, 2048, 688.05)],
        [
            *((1, 192, 53.68), (1, 320, 54.1), (1, 576, 54.86), (1, 1088, 54.77), (1, 2112, 54.89)),
            *((2, 576, 59.92), (4, 576, 60.52), (8, 576, 61.69), (16, 576, 65.46), (32, 576, 72.19)),
        ],
    )
}
BY_BYTES = 14.48 / 16.06
"""Weights of Mistral-7B over those of Llama-3-8B."""
BETWEEN = (26.03 - 13.48) / (40.2 - 13.48)
"""Where the weights of Vicuna-13B lie between those of Llama-2-7B and InternLM-20B."""
HOST_MS = 2.0


def linear(key: str) -> Cost:
    return lambda tokens: dict(zip(TOKENS, LINEAR_MS[key], strict=True))[tokens]


def all_reduce(key: str) -> Cost:
    return lambda tokens: dict(zip(TOKENS, ALL_REDUCE_MS[key], strict=True))[tokens]


def between(gpu: str) -> Cost:
    small, large = linear(f"llama-2-7b {gpu}"), linear(f"internlm-20b {gpu}")
    return lambda n: small(n) + BETWEEN * (large(n) - small(n))


def prefill(cost: Cost, quadratic_ms: float) -> Points:
    return [(1, n, cost(n) + quadratic_ms * (n / 1024) ** 2 + HOST_MS) for n in TOKENS if n >= 128]


def decode(cost: Cost, constant_ms: float, per_token_ms: float, profile: Profile) -> Points:
    return [
        (b, c, cost(b) + constant_ms + per_token_ms * b * c + HOST_MS)
        for b in TOKENS[:6]
        for c in (256, 1024, 4096)
        if b * c <= profile.kv_tokens
    ]


def eight_b(profile: Profile) -> tuple[Points, Points]:
    share = BY_BYTES if profile.model == "mistral-7b" else 1.0
    a100 = linear("llama-3-8b A100")
    if profile.accelerator == "A100":
        return prefill(lambda n: share * a100(n), 1.9), decode(
            lambda n: share * a100(n), 0.48, 8.57e-5, profile
        )
    if profile.accelerator == "H100":
        h100 = linear("llama-2-7b H100"), linear("llama-2-7b A100")
        return (
            prefill(lambda n: share * a100(n) * h100[0](n) / h100[1](n), 0.65),
            decode(lambda n: share * a100(n) * h100[0](n) / h100[1](n), 0.42, 5.22e-5, profile),
        )
    a40, seven_b = linear("llama-2-7b A40"), linear("llama-2-7b A100")
    lost_ms = 28 * (1 - share)
    return (
        prefill(lambda n: share * a100(n) * a40(n) / seven_b(n) * 149.7 / 125, 4.97),
        [(b, 1024, ms - lost_ms) for b, ms in ((1, 28), (8, 31), (32, 40), (64, 49))],
    )


def thirteen_b(profile: Profile) -> tuple[Points, Points]:
    if profile.accelerator == "H100":
        cost = between("H100")
        return prefill(cost, 1.02), decode(cost, 0.53, 3.26e-4, profile)
    cost = between("2xA40")

    def bus(n: int) -> float:
        return 80 * (0.03 + n * 10240 / 10e9 * 1e3)

    return (
        prefill(lambda n: cost(n) * 149.7 / 125 + bus(n), 3.9),
        decode(lambda n: cost(n) * 696 / 600 + bus(n), 1.0, 9.1e-4, profile),
    )


def seventy_b(profile: Profile) -> tuple[Points, Points]:
    key = f"llama-70b {profile.gpus}xH100"
    parts = linear(key), all_reduce(key)
    quadratic, constant, per_token = {2: (1.49, 0.9, 6.5e-5), 4: (0.75, 0.85, 3.26e-5)}[profile.gpus]
    return (
        prefill(lambda n: parts[0](n) + parts[1](n), quadratic),
        decode(lambda n: parts[0](n) + parts[1](n), constant, per_token, profile),
    )


def transcribed(profile: Profile) -> tuple[Points, Points]:
    key = (profile.model, profile.accelerator, profile.gpus)
    if key in LMDEPLOY or key in SPLITWISE:
        return (LMDEPLOY | SPLITWISE)[key]
    return {
        "mistral-7b": eight_b, "llama-3-8b": eight_b, "vicuna-13b": thirteen_b, "llama-70b": seventy_b
    }[profile.model](profile)  # fmt: skip


def four_digits(points: Iterable[FitPoint]) -> list[FitPoint]:
    return [point._replace(ms=float(f"{point.ms:.4g}")) for point in points]


every_profile = pytest.mark.parametrize(
    "profile", builtin_profiles(), ids=lambda p: f"{p.model}-{p.accelerator}-x{p.gpus}"
)


def fitted(profile: Profile) -> FitPoints:
    assert profile.fit is not None
    return profile.fit


@every_profile
def test_the_points_in_the_file_are_the_transcribed_ones(profile: Profile) -> None:
    prompts, decodes = transcribed(profile)
    wanted = [FitPoint(b, n, 0, 0, 0, ms) for b, n, ms in prompts]
    wanted += [FitPoint(0, 0, 0, b, c, ms) for b, c, ms in decodes]
    assert four_digits(fitted(profile).points) == four_digits(wanted)


@every_profile
def test_the_stated_errors_are_those_of_the_coefficients_at_the_points(profile: Profile) -> None:
    fit, equations = fitted(profile), profile.equations
    assert equations is not None
    each = [
        [abs(equations.prefill.ms(p.prompts, p.new) / p.ms - 1) for p in fit.points if p.prompts],
        [abs(equations.decode.ms(p.decodes, p.context) / p.ms - 1) for p in fit.points if p.decodes],
    ]
    assert fit.error_mean == pytest.approx(max(sum(part) / len(part) for part in each), rel=0.06)
    assert fit.error_max == pytest.approx(max(map(max, each)), rel=0.06)
    assert fit.error_max < 0.2


@pytest.mark.parametrize(
    ("model", "gpu", "gpus"), [("vicuna-13b", "A100", 1), ("llama-70b", "A100", 2), ("llama-70b", "A100", 4)]
)
def test_what_was_measured_on_the_accelerator_is_marked_measured(model: str, gpu: str, gpus: int) -> None:
    sources = find_profile(builtin_profiles(), model, gpu, gpus).sources
    assert sources["linear_ms"].kind is sources["kv_ms"].kind is SourceKind.MEASURED
