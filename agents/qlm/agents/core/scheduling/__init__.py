"""Decisions of an agent on what runs next: pulls, preemption, demotion, model swaps, prefetch."""
