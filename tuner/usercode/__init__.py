"""Send the user's code to another process: entrypoints, pickles, training functions by value."""
