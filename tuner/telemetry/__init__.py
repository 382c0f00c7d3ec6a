"""Logs with the ids of what they are about, and traces."""
