"""Trials: what runs on the cluster, and what the driver host needs to run trials there.

Each folder is a layer: it may use the folders below it and nothing above it. import-linter checks this.

lightning     Lightning trainers, in a trial and in a script groups        worker groups, as the driver host sees them
runtime       a rank's process, around the training function compat        training code written for Ray or Optuna, or
as a class training      what training code calls checkpoints   what is kept in the experiment's storage messages
what the driver host and the ranks send each other, and how
"""

from tuner.trials import moved

moved.install()
