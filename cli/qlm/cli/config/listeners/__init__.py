"""The listeners for clients and for operators, as the configuration has them."""
