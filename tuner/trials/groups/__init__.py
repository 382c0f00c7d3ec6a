"""Worker groups, as the driver host sees them.

`manager` runs segments on groups; `segment_run` holds the manager's state of one segment. `pool` finds a group for each
segment: `admission` decides which segment is next, by the rule of `fair_share`; `warm` keeps idle groups; `builder`
builds and ends groups; `placement` assigns their ranks to processes. `watch` waits for the ranks of a segment and detects
failures; `failures` turns errors into causes and messages. `nodes` has the functions that run on a rank's node after the
rank has ended. `interrupts` makes all ranks of a segment wait at the same report. `local_pool` and `local_ranks` replace
`pool` if Ray is not used.
"""
