"""Instances with nothing to do while work of their awake model waits, by samples of a simulation."""

from typing import Final

from qlm.simulator.sampling import ClusterSampler

EVERY_S: Final = 0.25


def new_sampler() -> ClusterSampler:
    """Return a sampler for `longest_idle_s`."""
    return ClusterSampler(EVERY_S)


def longest_idle_s(sampler: ClusterSampler) -> float:
    """Return the longest time for which an instance ran nothing while requests of its awake model waited."""
    longest = 0
    for instance in range(len(sampler.samples[0].running)):
        idle = 0
        for sample in sampler.samples:
            awake = sample.awake[instance]
            waits = awake >= 0 and sample.running[instance] == 0 and sample.waiting[awake] > 0
            idle = idle + 1 if waits else 0
            longest = max(longest, idle)
    return longest * EVERY_S
