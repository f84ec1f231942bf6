"""Log probabilities: from the output log to the forms of OpenAI and vLLM."""
