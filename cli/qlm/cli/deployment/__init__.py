"""One deployment per name: the check that broker and store belong together."""
