"""What each command does: one file for each family, named as people type it."""
