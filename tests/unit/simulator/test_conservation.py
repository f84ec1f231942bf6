"""Nothing is created or lost in the engine model: blocks, tokens, requests, memory, time."""

from hypothesis import settings

from support.engine_life import EngineLife

TestEngineLife = EngineLife.TestCase
TestEngineLife.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
