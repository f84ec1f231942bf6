"""An open-loop client for OpenAI-compatible servers, and the rating of its results and of those of others."""
