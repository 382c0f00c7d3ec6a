"""The routes under /experiments."""
