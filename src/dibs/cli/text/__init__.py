"""Turns documents into text for people. All of it is pure, except the status line."""
