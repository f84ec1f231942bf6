"""Request completion times, estimated as distributions."""
