"""Policy `unified`: readers, deadlines and batch work in one currency, seconds of slack.

Each part is a module of its own, which says what leaving it out costs. The figures are from a prototype: a
66B model on four accelerators at 2.2 requests per second, past its saturation, and bursts.
"""
