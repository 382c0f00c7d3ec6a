"""Worker groups, as the driver host sees them.

`manager` runs segments on groups, `pool` forms groups and keeps warm ones, `placement` assigns ranks to processes,
`nodes` has the jobs that run on a node after its rank has ended, and `failures` turns errors into causes and
messages.
"""
