"""TokenFlow: requests take turns by what their readers have not read yet."""
