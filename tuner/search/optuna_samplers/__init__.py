"""Searchers that use Optuna's samplers.

tpe, gp, cmaes, nsgaii   one searcher each
optuna_search            any other Optuna sampler, even a user's own
define_by_run            parameters that the training code asks for while it runs
model_based              the base class of these searchers
study                    an in-memory study that mirrors our trials
tpe_sampler              Optuna's TPE, made faster
cmaes_sampler            Optuna's CMA-ES, made reproducible to the bit
"""
