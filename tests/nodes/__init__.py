"""Several nodes with addresses of their own on one machine: a network namespace for each, joined by a bridge."""
