"""SLO-aware annealing: the order and the batches that maximise met objectives per second of latency.

`latency` and `fitting` have equations 14 to 19, `jobs` reads a view, `kernel` and `search` are algorithm 1,
and `policy` is the batch policy.
"""
