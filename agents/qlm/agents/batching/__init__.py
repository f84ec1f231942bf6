"""Batch policies: which requests of an instance run in the next iterations, which wait, and which are held.

A policy sees one instance (`view.View`) and answers with a `decision.Decision`. It is pure: hosts own time
and engines. The same policies run in the emulated engine, in a scheduler inside vLLM, and in the agent.
"""
