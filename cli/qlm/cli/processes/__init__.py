"""Gateway workers of `qlm serve`: processes that reach the embedded queue and state of another one."""
