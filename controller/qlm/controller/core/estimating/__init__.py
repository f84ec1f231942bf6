"""From what the store says to waiting and completion times: what is learned, and what follows from it."""
