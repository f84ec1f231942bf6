"""The shipped profiles are what their constants give."""

import pytest

from qlm.rct_estimator.profiles.file import profile_text
from scripts.shipped_profiles.hardware import HARDWARE
from scripts.shipped_profiles.logs import judged
from scripts.shipped_profiles.models import MODELS
from scripts.shipped_profiles.profiles import FOLDER, WANTED, built_profile, file_name
from scripts.shipped_profiles.times import linear_ms, slope_s


@pytest.mark.parametrize("wanted", WANTED, ids=lambda wanted: file_name(*wanted))
def test_the_file_is_what_the_constants_give(wanted: tuple[str, str, int]) -> None:
    text = (FOLDER / file_name(*wanted)).read_text("utf-8")
    assert text == profile_text(built_profile(*wanted)), "run `python -m scripts.shipped_profiles`"


def test_no_other_file_is_shipped() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {file_name(*wanted) for wanted in WANTED}


def test_the_shapes_have_the_published_numbers_of_parameters() -> None:
    published = {"mistral-7b": 7.24e9, "llama-3-8b": 8.03e9, "vicuna-13b": 13.02e9, "llama-70b": 68.98e9}
    for name, shape in MODELS.items():
        embeddings = shape.output_parameters
        assert shape.layer_parameters + 2 * embeddings == pytest.approx(published[name], rel=2e-3)


@pytest.mark.parametrize(
    ("name", "model", "measured"),
    [
        # Vidur's linear layers on one GPU, without the output projection: tokens and milliseconds.
        ("A100", "llama-3-8b", {1: 9.76, 64: 11.33, 128: 13.29, 512: 34.88, 2048: 144.65}),
        ("H100", "llama-70b", {1: 50.08, 64: 50.85}),
    ],
)
def test_the_linear_layers_keep_the_shape_that_was_measured(
    name: str, model: str, measured: dict[int, float]
) -> None:
    shape, hardware = MODELS[model], HARDWARE[name]
    output_ms = 2e3 * shape.output_parameters / (hardware.bytes_per_s * hardware.weights_share)
    for tokens, ms in measured.items():
        read_share = min(1.0, measured[1] / (1e3 * slope_s(shape, hardware, 1) * tokens))
        assert linear_ms(shape, hardware, 1, tokens) - output_ms * read_share == pytest.approx(ms, rel=0.07)


@pytest.mark.parametrize("log", ["3-2048-128", "6-2048-128", "9-2048-128", "20-256-192", "inf-2048-128"])
def test_the_profile_of_an_h100_predicts_what_clients_of_one_saw(log: str) -> None:
    """Logs of one start of vLLM 0.32; of another start they are further off, as the accuracy page shows."""
    level = judged(log)
    assert level.e2e.each is not None
    assert level.e2e.each < 0.04
    assert level.rate_error is None or abs(level.rate_error) < 0.03
