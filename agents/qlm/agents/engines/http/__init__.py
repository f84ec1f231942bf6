"""HTTP/1.1 to an engine for token streams: connections that call back, with no task or buffer between."""
