"""What the core itself decides: one module for each kind of occasion. All functions read the state and change nothing."""
