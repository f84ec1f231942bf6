"""Files and batches of clients on the disk, by tenant."""
