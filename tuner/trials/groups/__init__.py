"""Worker groups, as the driver host sees them.

`manager` runs segments on groups; `segment_run` is its state of one segment. `pool` finds a group for each segment:
`admission` decides whose turn it is by the rule of `fair_share`, `warm` keeps idle groups, and `builder` builds and
ends groups, whose ranks `placement` assigns to processes. `watch` waits for the ranks of a segment and detects
failures; `failures` turns errors into causes and messages; `nodes` has the jobs that run on a node after its rank has
ended. `interrupts` makes all ranks wait at the same report.
"""
