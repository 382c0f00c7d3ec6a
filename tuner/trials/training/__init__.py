"""What training code calls while a trial runs.

`tuner.report` and the rest of the public session belong here (`session`), the check of the metrics that it is given (`metrics`),
what training code may ask the driver for (`driver_calls`), and `tuner.torch` (`torch`).
"""
