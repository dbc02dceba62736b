"""What `dibs doctor` looks at."""
