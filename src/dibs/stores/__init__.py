"""Stores keep records; they never decide."""
