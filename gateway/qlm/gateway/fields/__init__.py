"""The fields of answers, as types: handlers name them in their annotations, and the reference tells them."""
