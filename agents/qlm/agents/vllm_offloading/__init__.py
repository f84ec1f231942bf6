"""KV cache in host memory inside vLLM, for engines whose batch QLM's scheduler decides."""
