"""Holds: who may have a job, and until when."""
