"""Files and batches in a bucket of S3-compatible storage."""
