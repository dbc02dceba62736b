"""What is redrawn on a terminal while it is looked at: `dibs top` and `dibs list --watch`."""
