"""Output of requests: tokens and log probabilities on their way to the output log."""
