"""Freeze-thaw: a model of the learning curves decides, at every level, which trial trains next.

Swersky, Snoek and Adams, "Freeze-Thaw Bayesian Optimization", 2014, https://arxiv.org/abs/1406.3896: a model of the
learning curves pauses and resumes many trials. `docs/freeze_thaw.md` explains the whole method.

    scheduler     keeps the facts, asks for decisions, and fits the model
    reasons       puts decisions into words
    acquisition   chooses the trial or the new configuration that trains next
    novelty       reduces the value of configurations that are close to earlier ones
    results       the results, and the selection to which the model is fitted
    curve_model   a Gaussian process over configuration and time
    score_warp    the scale of the scores in the model
    unit_cube     configurations as points
    budget        the limit on all training, and the choice of the trial that is trained to the end
    repeats       trials whose results equal those of another trial
    levels        the times at which decisions are made
    state         the state of the scheduler
"""

from tuner.schedulers.freeze_thaw.scheduler import FreezeThawScheduler

__all__ = ["FreezeThawScheduler"]
