"""`tuner.replay`: find what another scheduler would have done with the recorded trials of an experiment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tuner.driver.replay import Compared, Outcome, Replay, Totals
from tuner.errors import NotFound
from tuner.experiment.analysis import recommend
from tuner.experiment.analysis import replay as replays
from tuner.experiment.analysis.recommend import Recommendation
from tuner.experiment.operations.usecases import id_of
from tuner.names import keywords_explained
from tuner.sdk.saved import database

__all__ = ["Compared", "Outcome", "Recommendation", "Replay", "Totals", "recommend_scheduler", "replay"]


@keywords_explained
def replay(
    experiment: str,
    *,
    scheduler: Any = None,
    search_alg: Any = None,
    max_concurrent_trials: int | None = None,
) -> Replay:
    """Replay an experiment's recorded trials under another scheduler or searcher, in virtual time.

    Nothing is trained, and no values are made up. If the other scheduler would have trained a trial for longer than it
    was recorded, the trial is *censored*: it ends at its last recorded report, so the cost of the replay is a lower
    bound. If a searcher or a scheduler proposes a configuration, the nearest recorded one is used instead.

        found = tuner.replay("digits", scheduler=tuner.ASHAScheduler(reduction_factor=3))
        print(found.summary)  # asha(reduction_factor=3) would have saved 38 % of the training and found the same best trial

    Args:
        experiment: ``exp_...``, or the experiment's name if no other experiment has it. It may still be running.
        scheduler: a scheduler, its name or its JSON form. None: the experiment's own.
        search_alg: a searcher, its name or its JSON form. None: the recorded configurations, in their original order.
        max_concurrent_trials: the number of trials that train at once. None: as many as trained at once in the experiment.

    Returns:
        What would have happened and what did happen, in total and for each trial.

    Raises:
        NotFound: this home has no such experiment. The message names the nearest one.
        SpecError: an argument is wrong, or the experiment cannot be replayed: it used population-based training, has
            several objectives, or has no reports.
    """
    with database() as store:
        found = id_of(store, experiment)
        if not found.startswith("exp_"):
            raise NotFound(f"{experiment!r} is a trial; expected an experiment's id or name")
        return replays.replay(
            store,
            store.experiments.get(found),
            scheduler=scheduler,
            search_alg=search_alg,
            max_concurrent_trials=max_concurrent_trials,
        )


@keywords_explained
def recommend_scheduler(
    experiments: str | Sequence[str] | None = None, *, schedulers: Any = None, project: str | None = None
) -> Recommendation:
    """Recommend a scheduler, by replaying the experiments of this home under several schedulers.

    A replay counts only if none of its trials is censored, because only then are its cost and its result known. So the most
    useful experiments are those whose trials were trained to the end. Each scheduler is judged by the share of the training
    that it would have saved, and by how much worse its best trial would have been, with 95 % confidence intervals over the
    experiments.

        print(tuner.recommend_scheduler().summary)
        # median would have saved 41% (95 % interval: 32% to 50%) of the training of 7 experiments and lost 1% ...

    Args:
        experiments: the ids or names of experiments, or one of them. None: all experiments that have ended.
        schedulers: a list of the schedulers to compare, as for `replay`, or one of them. None: ASHA with three reduction
            factors, promotion, median, HyperBand.
        project: use only experiments of this project. None: experiments of all projects.
    """
    if isinstance(experiments, str):
        experiments = [experiments]
    if schedulers is not None and (isinstance(schedulers, str | Mapping) or not isinstance(schedulers, Iterable)):
        schedulers = [schedulers]
    with database() as store:
        if experiments is not None:
            records = [store.experiments.get(id_of(store, called)) for called in experiments]
        else:
            page = store.experiments.page(project=project, page_size=1000)
            records = [record for record in page.items if record.state.ended]
        return recommend.recommend(store, records, schedulers)
