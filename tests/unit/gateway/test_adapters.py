"""Adapters in a gateway: models of their base, with its tokenizer and context."""

import pytest

from qlm.domain.errors import InvalidValueError
from qlm.domain.fleet import ModelSpec
from qlm.domain.ids import ModelId
from qlm.gateway.api.errors import ApiError
from qlm.gateway.tokenizers.served_models import ServedModels

SPEC = ModelSpec(id=ModelId("base"), tokenizer="byte", context_tokens=64, adapters=("poet", "clerk"))
OTHER = ModelSpec(id=ModelId("other"), tokenizer="byte", context_tokens=32)


def test_adapters_follow_their_base_and_have_its_tokenizer() -> None:
    models = ServedModels([SPEC, OTHER])
    assert [each.name for each in models] == ["base", "poet", "clerk", "other"]
    base, poet = models.named("base"), models.named("poet")
    assert (poet.spec, poet.adapter, base.adapter) == (SPEC, "poet", "")
    assert poet.tokenizer is base.tokenizer
    assert len({models.fingerprint(name) for name in ("base", "poet", "clerk")}) == 3


def test_a_request_that_names_no_model_gets_the_base_if_there_is_only_one() -> None:
    assert [ServedModels([SPEC]).chosen(name).name for name in (None, "")] == ["base"] * 2
    with pytest.raises(ApiError, match="model is missing; expected one of base, poet, clerk, other"):
        ServedModels([SPEC, OTHER]).chosen(None)


def test_an_unknown_adapter_is_not_found() -> None:
    with pytest.raises(ApiError, match='model is "nobody"; expected one of base, poet, clerk') as caught:
        ServedModels([SPEC]).named("nobody")
    assert (caught.value.status, caught.value.code) == (404, "model_not_found")


def test_an_adapter_has_a_name() -> None:
    with pytest.raises(InvalidValueError, match="model is"):
        ModelSpec(id=ModelId("base"), tokenizer="byte", context_tokens=64, adapters=("",))
