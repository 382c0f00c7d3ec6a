"""Trials: the code that runs in ranks, and the code with which the driver host starts and watches ranks.

Each folder is a layer. It may import from the folders listed below it, but not from those above; import-linter checks this.

    lightning     Lightning trainers, in a trial and in a script
    groups        worker groups, as the driver host sees them
    runtime       a rank's process, around the training function
    compat        training code written for Ray or Optuna, or as a class
    training      functions that training code calls
    checkpoints   files in the experiment's storage
    messages      messages between driver host and ranks
"""

from tuner.trials import moved

moved.install()
