"""Back up and restore databases."""
