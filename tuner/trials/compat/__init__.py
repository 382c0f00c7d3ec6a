"""Adapters for training code that was written for other libraries, so that it runs unchanged.

`ray_compat`, `train_loop`, `datasets` and `preemption` are for Ray Tune and Ray Train, `optuna_compat` is for Optuna's
objectives, and `class_form` for classes with `setup` and `step`. `forms` chooses between all of them.
"""
