"""Keep track of an experiment's checkpoints: which exist, from which each trial would start, and which can be deleted.

The ledger is a part of `State`: the same log entries give the same ledger, live and after a restart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tuner.domain.events import CheckpointInfo
from tuner.domain.experiment import CheckpointPolicy, Objective
from tuner.domain.trial import KeptCheckpoint, Population, Segment, Trial
from tuner.driver.core.state.retention import keeps_all, superfluous

Deletion = tuple[int, CheckpointInfo]
"""A checkpoint to delete, as (number of the trial that saved the checkpoint, the checkpoint)."""


class CheckpointLedger:
    """Keeps track of the checkpoints of all trials. Only this class changes `Trial.checkpoints` and `Trial.checkpoint`.

    Checkpoints are ordered by (segment, training_iteration). A trial starts from its newest *usable* checkpoint. A
    checkpoint is usable if it is ready and complete and its report has been committed, because a trial must never start
    ahead of its reports. After an exploit, only checkpoints that the trial has saved since the exploit are usable. Until it
    has saved one, the trial starts from the donor's checkpoint that the exploit named. If that one is lost, the trial falls
    back to the newest checkpoint that it had saved before the exploit.

    An upload may continue after its segment has ended. While such a *late* upload may still give the trial a newer checkpoint to
    start from, `awaits` returns that checkpoint. Until the upload has ended, the trial does not start, and no other trial
    starts from it.

    A checkpoint is removed from `Trial.checkpoints` as soon as its deletion is decided; `take_decided` returns the
    deletions to carry out. A deletion stays decided, even after a restart, until `deleted` confirms it.
    """

    def __init__(self, trials: Population, policy: CheckpointPolicy, objective: Objective) -> None:
        self._trials, self._policy, self._objective = trials, policy, objective
        self._owner: dict[str, int] = {}  # each existing ready checkpoint -> the trial that saved it
        self._early: dict[int, dict[str, None]] = {}  # trial -> checkpoints that wait for their report
        self._gone: dict[int, dict[str, None]] = {}  # trial -> deleted checkpoints of its open segment
        # uploads that were under way when their segment ended, as (trial, checkpoint)
        self._unfinished: dict[str, tuple[int, KeptCheckpoint]] = {}
        self.late: dict[str, tuple[int, int, CheckpointInfo]] = {}  # late uploads, as (trial, segment, checkpoint)
        # checkpoint of one trial -> other trials that would start from it
        self._borrowers: dict[str, dict[int, None]] = {}
        self._sources: dict[int, list[str]] = {}  # trial -> the checkpoints of its open and its planned segment
        self._started_from: dict[str, int] = {}  # checkpoint -> number of such segments that start from it
        self._best: int | None = None  # the trial with the best value, whose best checkpoint is never deleted
        self._expected: int | None = None  # the same after repeats: the trial with the best expected value
        self._kept: dict[str, int] = {}  # checkpoint -> number of enqueued trials that start from it
        self._by_users: dict[str, None] = {}  # checkpoints that users have pinned
        self.deleting: dict[str, Deletion] = {}  # deletions that are decided but not yet confirmed
        # Checkpoints in `deleting` that are usable until their files are deleted.
        self._spare: dict[str, KeptCheckpoint] = {}
        # Checkpoints in `deleting` that are no longer usable, even if a user has pinned them.
        self.lost: set[str] = set()
        self._decided: list[Deletion] = []  # deletions decided since the last call of `take_decided`
        # Trials whose checkpoint to start from has changed since the last call of `take_moved`.
        self._moved: dict[int, None] = {}

    def take_decided(self) -> list[Deletion]:
        """Return the deletions of checkpoints that were decided since the last call of this method."""
        decided, self._decided = self._decided, []
        return decided

    def take_moved(self) -> list[int]:
        """Return the trials whose checkpoint to start from has changed since the last call of this method."""
        moved, self._moved = self._moved, {}
        return list(moved)

    def decide_again(self) -> None:
        """Decide all unconfirmed deletions again, because the previous driver may not have carried them out."""
        self._decided = list(self.deleting.values())

    def exists(self, checkpoint: str) -> bool:
        """Return whether this checkpoint is ready and neither lost nor being deleted."""
        return checkpoint in self._owner

    def find(self, checkpoint: str) -> KeptCheckpoint | None:
        """Return the checkpoint with this id, whichever trial saved it; None if it does not exist."""
        owner = self._owner.get(checkpoint)
        return None if owner is None else self._trials[owner].checkpoints.get(checkpoint)

    def newest_first(self) -> Iterator[CheckpointInfo]:
        """Yield the checkpoints that are ready and neither lost nor being deleted, beginning with the newest."""
        for checkpoint in reversed(self._owner):
            if (kept := self.find(checkpoint)) is not None:
                yield kept.info

    def pin(self, checkpoint: str, pinned: bool) -> None:
        """Record that a user has pinned or unpinned this checkpoint.

        A pin is accepted only before the deletion is committed. If the deletion is decided already, the pin undoes it.
        """
        if pinned and checkpoint not in self._by_users:
            self._by_users[checkpoint] = None
            self.add_requests(checkpoint, 1)
            if (kept := self._spare.pop(checkpoint, None)) is not None:
                owner, _ = self.deleting.pop(checkpoint)
                self._trials[owner].checkpoints[checkpoint] = kept
                self._owner[checkpoint] = owner
                for trial in self._trials:
                    if trial.number == owner or (trial.inherited is not None and trial.inherited.id == checkpoint):
                        self._choose_start(trial)
        elif not pinned and checkpoint in self._by_users:
            del self._by_users[checkpoint]
            if checkpoint in self.deleting:  # the pin could not undo the deletion, and only preserved the files
                self._decided.append(self.deleting[checkpoint])
            self.add_requests(checkpoint, -1)

    def add_requests(self, checkpoint: str, more: int) -> None:
        """Add `more`, which may be negative, to the number of user requests that need this checkpoint. Ignore an empty id."""
        if not checkpoint:
            return
        _count(self._kept, checkpoint, more)
        if checkpoint not in self._kept and (owner := self._owner.get(checkpoint)) is not None:
            self.tidy(self._trials[owner])

    def keep(self, trial: Trial, segment: int, info: CheckpointInfo, value: float | None, t: float | None) -> None:
        """Add a checkpoint that `segment` of the trial saved, or record that a checkpoint already added is now ready.

        `value` and `t` are the objective and the time_attr value of the checkpoint's report, if that report is known. The
        checkpoint can be added before its report, or after newer checkpoints. A checkpoint whose deletion has been decided
        is ignored.
        """
        if info.ready:
            self.late.pop(info.id, None)
        if info.id in self.deleting or info.id in self._gone.get(trial.number, ()):
            return
        known = trial.checkpoints.get(info.id) or self._unfinished.pop(info.id, (0, None))[1]
        if known is not None:
            info = known.info if known.info.ready else info
            value = known.value if value is None else value
            t = known.t if t is None else t
        kept = trial.checkpoints[info.id] = KeptCheckpoint(info, value, segment, t)
        if info.ready:
            self._owner[info.id] = trial.number
        if not _is_reported(trial, kept):
            if segment < len(trial.segments) or not trial.holds_resources:  # the checkpoint's report will never come
                self._delete(trial, [kept])
                return
            self._early.setdefault(trial.number, {})[info.id] = None
        self._consider(trial, kept)
        self.tidy(trial)

    def reported(self, trial: Trial, segment: int, iteration: int, value: float | None, t: float | None) -> None:
        """Record that the report of this iteration is committed. A checkpoint that arrived before its report is now usable."""
        early = self._early.get(trial.number)
        if not early:
            return
        for name in list(early):
            kept = trial.checkpoints[name]
            if _is_reported(trial, kept):
                del early[name]
                if kept.segment == segment and kept.info.step == iteration:
                    trial.checkpoints[name] = KeptCheckpoint(kept.info, value, segment, t)
        self._choose_start(trial)
        self.tidy(trial)

    def inherit(self, trial: Trial, segment: int, source: CheckpointInfo | None, goes_back: bool = False) -> None:
        """Start the trial from `source`, another trial's checkpoint, until it has saved one of its own in `segment` or later.

        goes_back: True to let the trial fall back to its own checkpoints from earlier segments if `source` is lost.
        """
        before = trial.inherited
        if source is None or before is None or source.id != before.id:  # otherwise, it must not be deleted now
            self._give_back(trial)
        trial.line_begins, trial.inherited, trial.goes_back = segment, source, goes_back
        self._choose_start(trial)

    def go_back(self, trial: Trial, segment: int, source: CheckpointInfo | None) -> KeptCheckpoint | None:
        """Undo the trial's latest exploit if `segment` starts from an earlier checkpoint. Return that checkpoint.

        Return None if `source`, the checkpoint from which the segment starts, is a later one or the donor's.
        """
        kept = trial.checkpoints.get(source.id) if source is not None else None
        if kept is None or kept.segment >= trial.line_begins or kept.info == trial.inherited:
            return None
        self.inherit(trial, segment, kept.info, goes_back=True)
        return kept

    def awaits(self, trial: Trial) -> CheckpointInfo | None:
        """Return the newest checkpoint that is still being uploaded and that the trial would start from if it were ready.

        Return None if there is none, so that the trial can start from `Trial.checkpoint` now.
        """
        mine = [KeptCheckpoint(info, None, of) for number, of, info in self.late.values() if number == trial.number]
        mine = [kept for kept in mine if kept.segment >= trial.line_begins]
        if not mine:
            return None
        newest = max(mine, key=age)
        present = trial.checkpoints.get(trial.checkpoint.id) if trial.checkpoint is not None else None
        if present is not None and age(present) > age(newest):
            return None
        return newest.info

    def upload_failed(self, checkpoint: str) -> None:
        """Record that a late upload has failed, and decide to delete what it has left behind."""
        if (found := self.late.pop(checkpoint, None)) is not None:
            number, _, info = found
            self._trials[number].checkpoints.pop(checkpoint, None)
            self.lost.add(checkpoint)
            self.deleting[checkpoint] = number, info
            self._decided.append((number, info))

    def uploading(self) -> list[tuple[int, int, CheckpointInfo]]:
        """Return the checkpoints whose upload is not known to have ended, as (trial, segment, checkpoint)."""
        found = {
            kept.info.id: (trial.number, kept.segment, kept.info)
            for trial in self._trials
            for kept in trial.checkpoints.values()
            if not kept.info.ready
        }
        for number, kept in self._unfinished.values():
            found[kept.info.id] = number, kept.segment, kept.info
        return list({**found, **self.late}.values())

    def lose_uploads(self, died: bool = True) -> list[tuple[int, int, CheckpointInfo]]:
        """Record that all late uploads have failed, because their driver has stopped. Return them.

        died: whether the ranks have died with the driver, so that their other uploads will not finish either.
        """
        lost = list(self.late.values())
        for _, _, info in lost:
            self.upload_failed(info.id)
        if died:
            self._give_up(list(self._unfinished))
        return lost

    def segment_started(self, trial: Trial) -> None:
        """Give up the uploads that ended unfinished with earlier segments of the trial, whose ranks have died."""
        newest = trial.segments[-1].ordinal
        mine = [
            name
            for name, (number, kept) in self._unfinished.items()
            if number == trial.number and kept.segment < newest
        ]
        self._give_up(mine)

    def experiment_ended(self) -> None:
        """Give up the uploads that ended unfinished, whose ranks have died."""
        self._give_up(list(self._unfinished))

    def _give_up(self, unfinished: Iterable[str]) -> None:
        """Decide to delete what these uploads have left behind."""
        for name in unfinished:
            number, kept = self._unfinished.pop(name)
            if name not in self.deleting:
                self.lost.add(name)
                self.deleting[name] = number, kept.info
                self._decided.append((number, kept.info))

    def segment_ended(self, trial: Trial, segment: Segment, uploading: Iterable[CheckpointInfo] = ()) -> None:
        """Drop the ended segment's checkpoints that have no report, and its unfinished uploads.

        If word of the end of such an upload arrives after all, before the upload is given up, `keep` adds its checkpoint again.

        uploading: the uploads that continue although the segment has ended.
        """
        self.note_sources(trial)
        early = self._early.pop(trial.number, {})
        gone = self._gone.pop(trial.number, {})
        for info in uploading:
            if not self.exists(info.id) and info.id not in self.deleting and info.id not in gone:
                self.late[info.id] = trial.number, segment.ordinal, info
                trial.checkpoints.setdefault(info.id, KeptCheckpoint(info, None, segment.ordinal))
        mine = [kept for kept in trial.checkpoints.values() if kept.segment == segment.ordinal]
        for kept in mine:
            if not kept.info.ready and kept.info.id not in self.late:
                self._unfinished[kept.info.id] = trial.number, trial.checkpoints.pop(kept.info.id)
        self._delete(trial, [kept for kept in mine if kept.info.ready and kept.info.id in early])
        self._choose_start(trial)
        self.tidy(trial)
        if segment.source is not None and (owner := self._owner.get(segment.source.id, trial.number)) != trial.number:
            self.tidy(self._trials[owner])

    def lose(self, names: Iterable[str]) -> None:
        """Record that checkpoints are lost or incomplete: no trial will start from them, and their files are deleted."""
        names = list(names)
        for name in names:
            if self._spare.pop(name, None) is not None:  # its deletion is decided, and a pin can no longer undo it
                self.lost.add(name)
        for name in names:
            if (owner := self._owner.get(name)) is not None:
                trial = self._trials[owner]
                self.lost.add(name)
                self._delete(trial, [trial.checkpoints[name]])
                self._choose_start(trial)

    def on_node(self, node: str | None) -> list[str]:
        """Return the ids of the checkpoints whose files are on the disk of this node, including those that are being deleted."""
        existing = ((name, self.find(name)) for name in self._owner)
        return [name for name, kept in (*existing, *self._spare.items()) if kept is not None and kept.info.node == node]

    def deleted(self, trial: Trial, checkpoint: str) -> None:
        """Record that the files of a checkpoint were deleted."""
        self.deleting.pop(checkpoint, None)
        self._spare.pop(checkpoint, None)
        self.lost.discard(checkpoint)
        if trial.holds_resources:
            self._gone.setdefault(trial.number, {})[checkpoint] = None
        if checkpoint in trial.checkpoints:  # an earlier version of tuner, with other rules, decided the deletion
            self._drop(trial, checkpoint)
            self._restore_spare(trial)
            self._choose_start(trial)
            self.tidy(trial)

    def _restore_spare(self, trial: Trial) -> None:
        """Undo the trial's deletions that the policy has decided and that are not confirmed."""
        for name in [name for name in self._spare if self.deleting[name][0] == trial.number]:
            del self.deleting[name]
            trial.checkpoints[name] = self._spare.pop(name)
            self._owner[name] = trial.number

    def note_sources(self, trial: Trial) -> None:
        """Record from which checkpoints the trial's open and planned segments start. These must not be deleted."""
        for name in self._sources.pop(trial.number, ()):
            _count(self._started_from, name, -1)
        segments = (trial.next, trial.segment if trial.holds_resources else None)
        if names := [one.source.id for one in segments if one is not None and one.source is not None]:
            self._sources[trial.number] = names
        for name in names:
            _count(self._started_from, name, 1)

    def trial_ended(self, trial: Trial) -> None:
        """Record that the trial will never run again, so that it no longer needs a checkpoint of another trial."""
        if trial.inherited is not None and (owner := self._owner.get(trial.inherited.id)) is not None:
            self.tidy(self._trials[owner])

    def set_leader(self, number: int) -> None:
        """Record that this trial now has the best value, so that its best checkpoint is kept."""
        before, self._best = self._best, number
        if before is not None and before != number:
            self.tidy(self._trials[before])

    def set_expected_best(self, number: int) -> None:
        """Record that this trial now has the best expected value, so that its best checkpoint is kept, too."""
        before, self._expected = self._expected, number
        if before is not None and before != number:
            self.tidy(self._trials[before])

    def tidy(self, trial: Trial) -> None:
        """Mark a trial's checkpoints for deletion, except those kept by the policy and those needed by a segment or a user."""
        if len(trial.checkpoints) < 2 or keeps_all(self._policy):
            return
        needed = {trial.checkpoint.id} if trial.checkpoint is not None else set()
        if (
            trial.number in (self._best, self._expected)
            and (best := trial.best_checkpoint(self._objective)) is not None
        ):
            needed.add(best.id)
        found = superfluous(self._usable(trial), self._policy, self._objective, needed)
        found = [kept for kept in found if not self._is_pinned(kept.info.id)]
        self._delete(trial, found)
        self._spare.update((kept.info.id, kept) for kept in found)

    def _delete(self, trial: Trial, kept: Iterable[KeptCheckpoint]) -> None:
        for info in [k.info for k in kept]:
            self._drop(trial, info.id)
            self.deleting[info.id] = trial.number, info
            self._decided.append((trial.number, info))

    def _drop(self, trial: Trial, checkpoint: str) -> None:
        trial.checkpoints.pop(checkpoint, None)
        self._owner.pop(checkpoint, None)
        self._early.get(trial.number, {}).pop(checkpoint, None)
        for number in self._borrowers.pop(checkpoint, {}):
            self._choose_start(self._trials[number])

    def _usable(self, trial: Trial, since: int = 1) -> list[KeptCheckpoint]:
        """Return the trial's ready checkpoints whose reports are known, from segment `since` on, oldest first."""
        early = self._early.get(trial.number, {})
        found = trial.checkpoints.values()
        return sorted((k for k in found if k.info.ready and k.segment >= since and k.info.id not in early), key=age)

    def _consider(self, trial: Trial, kept: KeptCheckpoint) -> None:
        """Let the trial start from `kept`, which is new or newly ready, if it is newer than the checkpoint chosen so far.

        Where possible, look at no other checkpoints, because a trial may keep thousands.
        """
        present = trial.checkpoints.get(trial.checkpoint.id) if trial.checkpoint is not None else None
        if present is None or present is kept or present.segment < trial.line_begins:
            self._choose_start(trial)
        elif self._is_usable(trial, kept) and age(kept) > age(present):
            trial.checkpoint = kept.info

    def _is_usable(self, trial: Trial, kept: KeptCheckpoint) -> bool:
        return kept.info.ready and kept.info.id not in self._early.get(trial.number, ())

    def _choose_start(self, trial: Trial) -> None:
        own = self._usable(trial, trial.line_begins)
        inherited = trial.inherited
        chosen = own[-1].info if own else inherited
        if chosen is not None and not self.exists(chosen.id):
            chosen = None
        if chosen is None and trial.goes_back and (earlier := self._usable(trial)):
            chosen = earlier[-1].info
        if chosen != trial.checkpoint:
            self._moved[trial.number] = None
            self._give_back(trial)
        trial.checkpoint = chosen
        if chosen is not None and chosen == inherited and not own:
            self._borrowers.setdefault(chosen.id, {})[trial.number] = None

    def _give_back(self, trial: Trial) -> None:
        """Record that the trial no longer needs the checkpoint that it took over from another trial."""
        borrowed = trial.inherited
        if borrowed is None or trial.number not in self._borrowers.get(borrowed.id, ()):
            return
        del self._borrowers[borrowed.id][trial.number]
        if not self._borrowers[borrowed.id]:
            del self._borrowers[borrowed.id]
        if (owner := self._owner.get(borrowed.id)) is not None:
            self.tidy(self._trials[owner])

    def _is_pinned(self, checkpoint: str) -> bool:
        """Return whether users need this checkpoint, or a segment or another trial would start from it."""
        borrowers = self._borrowers.get(checkpoint, ())
        return (
            checkpoint in self._kept
            or checkpoint in self._started_from
            or not all(self._trials[number].state.ended for number in borrowers)
        )


def _count(counts: dict[str, int], name: str, more: int) -> None:
    """Add `more`, which may be negative, to a count. Remove it if it is 0."""
    counts[name] = counts.get(name, 0) + more
    if not counts[name]:
        del counts[name]


def _is_reported(trial: Trial, kept: KeptCheckpoint) -> bool:
    return kept.segment <= len(trial.segments) and kept.info.step <= trial.segments[kept.segment - 1].iteration


def age(kept: KeptCheckpoint) -> tuple[int, int]:
    """Return the key that sorts the checkpoints of a trial, oldest first. The iteration may decrease after an exploit."""
    return kept.segment, kept.info.step
