"""`make bench ARGS="streams"`: what a token costs on its way through QLM, and how late it comes."""
