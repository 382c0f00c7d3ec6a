"""The user's code on its way to another process: entrypoints, pickles, training functions by value."""
