"""The state of one experiment: `state` applies log entries to it, and the other modules hold its parts."""
