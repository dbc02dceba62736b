"""What commands ask of a tracker, and write there."""
