"""The referee: checks and prices plans, by code that no planning method shares."""
