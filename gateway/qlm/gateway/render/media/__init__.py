"""Images, sound and video of conversations: from what a client names to what an engine needs."""
