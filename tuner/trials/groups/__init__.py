"""Worker groups, as the driver host sees them.

`manager` runs segments on groups, and `segment_run` is what it knows about one of them. `pool` finds a group for each
segment: `admission` decides whose turn it is by the rule of `fair_share`, `warm` keeps groups that nobody uses now, and
`builder` builds and ends groups, whose ranks `placement` assigns to processes. `watch` waits for the ranks of a segment and
finds out what is wrong; `failures` turns errors into causes and messages, and `nodes` has the jobs that run on a node after
its rank has ended. `interrupts` makes all ranks wait at the same report.
"""
