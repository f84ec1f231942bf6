"""`make upgrade`: stop and restart every process in turn under load, as a rolling update does."""
