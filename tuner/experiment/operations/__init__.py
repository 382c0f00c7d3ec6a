"""Change experiments: create, fork, import and delete them, and the verbs (pause, cancel, ...)."""
