"""The subcommands, by what they are for."""
