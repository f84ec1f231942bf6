"""What an agent runs next: pulls, preemption, demotion, model swaps, prefetch."""
