"""What must hold of every history: pure functions from what happened to what is wrong with it."""
