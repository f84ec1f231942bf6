"""Version 1 of the gRPC API: its proto, and the stubs that `make rpc` generates from it."""
