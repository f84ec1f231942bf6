"""Routes that vLLM has beside OpenAI's: those that QLM has as well, and those that it refuses."""
