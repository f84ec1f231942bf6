"""The document of the API (OpenAPI 3.1), and what routes declare for it beside their handlers."""
