"""Training code that was written for another library and runs here unchanged.

`ray_compat`, `train_loop` and `datasets` have the interfaces of Ray Tune and Ray Train, `optuna_compat` Optuna's
objectives, `class_form` classes with `setup` and `step`, and `forms` chooses between all of them.
"""
