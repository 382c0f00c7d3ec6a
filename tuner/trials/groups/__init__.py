"""Worker groups, as the driver host sees them.

`segments` runs segments on groups, `pools` finds a group for each segment, and `cluster` knows the nodes. `failures`
turns errors from Ray and from ranks into causes and messages.
"""
