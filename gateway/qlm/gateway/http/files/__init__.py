"""Files and batches over HTTP."""
