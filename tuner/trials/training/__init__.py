"""The functions that training code calls while a trial runs.

`session` has `tuner.report` and the rest of the public session, `metrics` checks the metrics that it is given,
`driver_calls` has the other requests to the driver, and `torch` is `tuner.torch`.
"""
