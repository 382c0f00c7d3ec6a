"""The functions that training code calls while a trial runs.

`session` has `tuner.report` and the rest of the public session, `metrics` checks the metrics that it is given,
`driver_calls` has what training code may ask the driver for, and `torch` is `tuner.torch`.
"""
