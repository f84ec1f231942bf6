"""The command line: runs, inspects and steers QLM."""
