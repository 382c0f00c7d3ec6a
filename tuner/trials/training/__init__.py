"""The functions that training code calls while a trial runs.

`session` has `tuner.report` and the other public functions, `metrics` checks metrics, `driver_calls` has the other
requests to the driver, and `torch` is `tuner.torch`.
"""
