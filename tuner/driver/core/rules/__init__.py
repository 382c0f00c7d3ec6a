"""Make the decisions of the core itself: one module for each kind of occasion. Its functions only read the state."""
