from datetime import datetime

import pytest

from qlm.domain.errors import InvalidValueError
from qlm.gateway.core.tokenizer import ChatMessage
from qlm.gateway.tokenizers.chat_template import ChatTemplate

USER = ChatMessage(role="user", content="<b> & ü")


def rendered(source: str, *messages: ChatMessage) -> str:
    template = ChatTemplate(source, {"bos_token": "<s>"}, lambda: datetime(2030, 1, 31))
    return template.render(messages or (USER,))


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ bos_token }}{{ messages[0].content }}", "<s><b> & ü"),
        ("{{ messages[0]['content'] | tojson }}", '"<b> & ü"'),
        ("{{ {'b': 1, 'a': [1]} | tojson(indent=1, sort_keys=true) }}", '{\n "a": [\n  1\n ],\n "b": 1\n}'),
        ("{{ strftime_now('%Y-%m-%d') }}", "2030-01-31"),
        ("{% for i in range(5) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("  {% if true %}\n  x\n  {% endif %}\ny", "  x\ny"),
        ("{% generation %}a{{ 1 }}{% endgeneration %}b", "a1b"),
        ("{{ tools is none }}{{ undefined_thing }}", "True"),
        ("{{ 'name' in messages[0] }}", "False"),
        ("{{ add_generation_prompt }}", "True"),
    ],
    ids=[
        "variables",
        "json",
        "json options",
        "date",
        "break",
        "trimming",
        "generation",
        "none",
        "no name",
        "prompt",
    ],
)
def test_templates_render_as_transformers_renders_them(source: str, text: str) -> None:
    assert rendered(source) == text


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[0].content + 1 }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
    ],
    ids=["raises", "type error", "changes its input", "leaves the sandbox"],
)
def test_a_template_that_fails_refuses_the_conversation(source: str) -> None:
    with pytest.raises(InvalidValueError, match="messages"):
        rendered(source)


ROLES = "{% for each in messages %}{{ each.role }}:{{ each.content }};{% endfor %}"


@pytest.mark.parametrize(
    ("conversation", "text"),
    [
        ([("developer", "a"), ("user", "b")], "system:a;user:b;"),
        ([("system", "a"), ("developer", "b"), ("user", "c")], "system:a\n\nb;user:c;"),
        ([("user", "a"), ("developer", "b"), ("developer", "")], "system:b;user:a;"),
        ([("user", "a"), ("system", "b")], "user:a;system:b;"),
    ],
    ids=["alone", "beside a system message", "not at the beginning", "no developer"],
)
def test_developers_speak_as_the_system_where_the_template_does_not_know_them(
    conversation: list[tuple[str, str]], text: str
) -> None:
    messages = [ChatMessage(role=role, content=content) for role, content in conversation]
    assert rendered(ROLES, *messages) == text


def test_developers_keep_their_role_where_the_template_knows_it() -> None:
    knows = ROLES + "{% if messages[0].role == 'developer' %}!{% endif %}"
    developer = ChatMessage(role="developer", content="a")
    assert rendered(knows, developer, ChatMessage(role="system", content="b")) == "developer:a;system:b;!"
