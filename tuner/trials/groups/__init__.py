"""Worker groups, as the driver host sees them.

`manager` runs segments on groups, and `segment_run` is what it knows about one of them. `pool` forms groups and keeps
warm ones, and `placement` assigns ranks to processes. `watch` waits for the ranks of a segment and finds out what is
wrong; `failures` turns errors into causes and messages, and `nodes` has the jobs that run on a node after its rank
has ended. `interrupts` makes all ranks wait at the same report.
"""
