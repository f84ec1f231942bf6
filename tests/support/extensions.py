"""Extensions for tests: drawn ones, and examples with every field and two of a later version."""

from typing import Any, Final

from hypothesis import strategies as st

from qlm.domain.formats.extensions import (
    ClassExtensions,
    LogExtensions,
    RequestExtensions,
    extensions_from_plain,
)
from qlm.domain.slo import DEADLINE_MAX_MS

LATER: Final[dict[str, Any]] = {"a_later_field": {"größe": [1, None, 2.5]}, "another": "🙂"}
"""Fields that a later version writes."""

CLASS_PLAIN: Final[dict[str, Any]] = {
    "p_met": 0.9,
    "deadline_ms": 20_000.0,
    "reader_tokens_per_s": 5.5,
}
REQUEST_PLAIN: Final[dict[str, Any]] = {
    "cls": CLASS_PLAIN | LATER,
    "p_met": 0.95,
    "render_state": '{"parser": "é"}',
    "task_id": "task-1",
    "task_calls": 4,
    "task_deadline_ns": 1_700_000_000_000_000_001,
    "deadline_ms": 20_500.5,
    "reader_tokens_per_s": 5,
    "response_state": "c-jf",
    "logprobs": 2,
    "prompt_logprobs": 1,
    "choice": 1,
    "choices": 4,
    "prompts": 2,
    "notify": True,
}
LOG_PLAIN: Final[dict[str, Any]] = {
    "render_state": "state\n",
    "render_state_tokens": 2,
    "preemptions": 3,
    "engine_losses": 2,
    "cached_tokens": 16,
    "logprobs.-3": "CCCC",
    "logprobs.0": "AAAA",
    "logprobs.12": "BBBBCCCC",
}

OF_CLASS: Final = extensions_from_plain(ClassExtensions, CLASS_PLAIN | LATER)
OF_REQUEST: Final = extensions_from_plain(RequestExtensions, REQUEST_PLAIN | LATER)
OF_LOG: Final = extensions_from_plain(LogExtensions, LOG_PLAIN | LATER)

_scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, width=64)
_values = st.recursive(
    _scalars.filter(lambda value: value not in (float("inf"), float("-inf"))) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
later_fields = st.dictionaries(st.text(max_size=12).map(lambda name: f"later {name}"), _values, max_size=3)

_probabilities = st.floats(0, 1)
_deadlines_ms = st.floats(0.01, DEADLINE_MAX_MS)
_paces = st.floats(0.01, 10_000)
_texts = st.text(max_size=40)
_names = st.text(min_size=1, max_size=20)

class_plains = st.builds(
    lambda known, later: known | later,
    st.fixed_dictionaries(
        {},
        optional={
            "p_met": _probabilities,
            "deadline_ms": _deadlines_ms,
            "reader_tokens_per_s": _paces,
        },
    ),
    later_fields,
)
log_plains = st.builds(
    lambda state, counts, later: state | counts | later,
    st.just({})
    | st.fixed_dictionaries({"render_state": _texts, "render_state_tokens": st.integers(0, 2**31 - 1)}),
    st.fixed_dictionaries(
        {},
        optional=dict.fromkeys(("preemptions", "engine_losses", "cached_tokens"), st.integers(0, 2**31 - 1)),
    ),
    later_fields,
)
_tasks: st.SearchStrategy[dict[str, Any]] = st.just({}) | st.fixed_dictionaries(
    {"task_id": _names},
    optional={"task_calls": st.integers(0, 1_000_000), "task_deadline_ns": st.integers(1, 2**63 - 1)},
)
request_plains = st.builds(
    lambda known, task, later: known | task | later,
    st.fixed_dictionaries(
        {},
        optional={
            "cls": class_plains.filter(bool),
            "p_met": _probabilities,
            "render_state": _texts,
            "deadline_ms": _deadlines_ms,
            "reader_tokens_per_s": _paces,
            "response_state": _texts,
        },
    ),
    _tasks,
    later_fields,
)
class_extensions = class_plains.map(lambda plain: extensions_from_plain(ClassExtensions, plain))
log_extensions = log_plains.map(lambda plain: extensions_from_plain(LogExtensions, plain))
request_extensions = request_plains.map(lambda plain: extensions_from_plain(RequestExtensions, plain))
