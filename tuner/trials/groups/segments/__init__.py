"""Run segments on worker groups.

`manager` starts segments and ends them; `segment_run` holds the manager's state of one segment. `watch` waits for the
ranks of a segment and detects failures. `interrupts` makes all ranks of a segment wait at the same report. `uploads`
follows the uploads that go on after a segment has ended.
"""
