"""What time brings without a caller, and what of a record goes with it to another store."""
