"""What knows nothing of the rules of dibs: errors, clock, ids, records, text, files."""
