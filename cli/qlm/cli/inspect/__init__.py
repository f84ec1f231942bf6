"""Views of a running deployment."""
