"""Figures of the papers on streaming experience, simulated again: `qlm evaluate streaming`."""
