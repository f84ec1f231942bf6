"""The cluster's load as a gateway knows it, and the admission of requests by it."""
