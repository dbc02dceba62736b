"""`dibs demo`: workers race for one backlog, one of them is killed, another takes over."""
