"""`make upgrade`: every part is stopped and started again in turn under load, as a rolling update does."""
