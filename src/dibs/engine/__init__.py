"""Runs commands on a store: reads, decides, writes if unchanged."""
