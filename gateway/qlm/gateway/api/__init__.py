"""Request and response formats: validation, translation, errors."""
