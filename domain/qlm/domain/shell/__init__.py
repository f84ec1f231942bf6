"""What the asyncio shells of all components share; no core imports it."""
