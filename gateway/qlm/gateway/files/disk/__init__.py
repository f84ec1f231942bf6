"""Files and batches in a folder of the disk."""
