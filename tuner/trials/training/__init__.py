"""The functions that training code calls while a trial runs.

`session` has `tuner.report` and the other public functions, `metrics` checks metrics, and `driver_calls` sends the
driver requests other than reports. `torch` is `tuner.torch`, and `weights` loads the weights in a checkpoint. `script`
runs a script as a trial, with `script_client` in the script's process and `metric_lines` for metrics that it prints.
"""
