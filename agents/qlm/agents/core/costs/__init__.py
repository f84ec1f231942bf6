"""What serving operations cost, and the host memory they share."""
