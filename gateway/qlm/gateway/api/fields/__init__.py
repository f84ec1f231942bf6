"""Types of the answers: handlers are annotated with them, and the HTTP reference is made from them."""
