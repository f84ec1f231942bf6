"""The referee: checks plans and prices them by a path that no planning method shares."""
