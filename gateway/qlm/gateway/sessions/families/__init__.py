"""Families: the requests that one call makes when it wants several answers, or answers to several prompts.

Each answer is a request of its own in queue, store and engine. All are admitted or refused together, and the
end of the call is theirs. The first one has the id of the call, from which the others derive theirs. It is
published last, so a retry that finds it finds all.
"""
