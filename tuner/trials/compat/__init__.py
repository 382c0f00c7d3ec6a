"""Training code that was written for something else, and runs here unchanged.

The interfaces of Ray Tune and Ray Train belong here (`ray_compat`, `train_loop`, `datasets`), Optuna's objectives
(`optuna_compat`), classes with `setup` and `step` (`class_form`), and the choice between all of them (`forms`).
"""
