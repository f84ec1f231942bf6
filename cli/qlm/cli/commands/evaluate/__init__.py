"""`qlm evaluate` and its subcommands."""
