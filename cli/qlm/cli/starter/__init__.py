"""What QLM serves before anybody has configured it, and the first configuration file."""
