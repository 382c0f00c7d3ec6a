"""The state of one experiment: `state` applies log entries, with `commands` and `ending`; the other modules hold its parts."""
