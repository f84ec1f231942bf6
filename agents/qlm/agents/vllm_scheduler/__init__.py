"""A scheduler for vLLM 0.32 that runs a batch policy of `qlm.agents.batching` inside the engine.

`plugin` is what vLLM loads (`--scheduler-cls`), `scheduler` the only module that imports vLLM. All others are
pure and import the standard library, numpy, and values of the domain.
"""
