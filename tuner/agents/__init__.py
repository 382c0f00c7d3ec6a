"""Agents: programs that ask a service for trials over HTTP and run them, as `tuner agent` does."""
