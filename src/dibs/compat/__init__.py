"""Code for clients of other systems. The rest of dibs does not need it."""
