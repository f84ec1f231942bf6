"""`qlm bench`: its commands, their options, and the measurement they run."""
