"""`qlm plan` and its subcommands."""
