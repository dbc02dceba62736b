"""What only clients of other systems need. dibs stands without it."""
