"""The commands: one file for each family, named as the user types it."""
