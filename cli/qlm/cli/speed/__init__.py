"""Which profile tells the speed of a model: measured, computed from its configuration, or a guess."""
