"""Pacing of streamed text for people: words at an even pace, never far behind their arrival."""
