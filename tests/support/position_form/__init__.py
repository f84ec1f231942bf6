"""The position form of the stochastic program: equations 6-13 with a variable per place.

The paper's own form, and the referee of the exact solver's pattern form on small problems.
"""
