"""Streams of events to clients."""
