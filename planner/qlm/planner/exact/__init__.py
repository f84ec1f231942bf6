"""The stochastic program (QLM, equations 6-13) solved to proven optimality, for small problems."""
