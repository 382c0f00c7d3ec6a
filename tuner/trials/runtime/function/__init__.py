"""Load the training function, call it in its directory, and notice if its modules have changed."""
