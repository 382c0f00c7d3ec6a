"""Freeze-thaw: predict learning curves with a model, and pause and resume trials according to the predictions.

Swersky, Snoek and Adams, "Freeze-Thaw Bayesian Optimization", 2014, https://arxiv.org/abs/1406.3896. A *level* is
a value of time_attr, such as 9 epochs. When a trial reaches a level, the scheduler chooses the trial that trains next.
`docs/freeze_thaw.md` explains the whole method.

    scheduler         records what has happened, decides, and fits the model
    decisions
      reasons         puts decisions into words
      acquisition     chooses the trial or the new configuration that trains next
      brief           decides about very short trials, mostly without the model
      novelty         reduces the value of configurations that are close to earlier ones
      budget          the limit on all training, and the choice of the trial that is trained to the end
    model
      learned         what the spec says about earlier experiments
      earlier         predictions from the results of earlier experiments
      results         the results, and the selection to which the model is fitted
      unit_cube       configurations as points
      curve_model     a Gaussian process over configuration and time
      score_warp      the scale of the scores in the model
      repeats         trials whose results equal those of another trial
      levels          the values of time_attr at which decisions are made
    state             the state of the scheduler
"""

from tuner.schedulers.freeze_thaw.scheduler import FreezeThawScheduler

__all__ = ["FreezeThawScheduler"]
