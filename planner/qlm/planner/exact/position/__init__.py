"""The position form: equations 6-13 with a variable per group, queue, position and rank."""
