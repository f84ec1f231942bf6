"""The live page: its files, its stream of events, and its explanations, under `/ui`."""
