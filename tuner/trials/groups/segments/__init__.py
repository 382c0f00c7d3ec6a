"""Run segments on worker groups.

`manager` starts and ends segments; `segment_run` holds the manager's state for one segment. `watch` waits for a
segment's ranks and detects failures. `interrupts` makes all ranks of a segment wait at the same report. `uploads` follows the
uploads that continue after a segment has ended.
"""
