"""Upper bound on the attainment of any policy, by a linear program with full hindsight."""
