/** Name, label and meaning of each limit. `python web/build.py types` writes this file; do not edit it. */
export const LIMITS = [
  ["max_concurrent_trials", "Trials at the same time", "trials that may run at the same time; empty: as many as the cluster holds"],
  ["time_budget_s", "Running time, in seconds", "running time in seconds after which the search ends, counted from the start of the first trial. The start of Ray and of the workers does not count, and neither do pauses"],
  ["budget", "Budget, in full trainings", "training that all trials together may spend, as a number of full trainings of max_t each; empty: a fifth of num_samples, but at least 3. Only the default scheduler, freeze_thaw, counts it; with other schedulers it is an error: limit these by num_samples"],
  ["gpu_hours", "GPU hours", "GPU hours that all trials together may use. Once they are used up, the trials end at their next report, or after stop_grace_s. A GPU counts for as long as a rank holds it"],
  ["max_failed_trials", "Failed trials that end the search", "failed trials after which the search ends as failed; `continue` counts anew; empty: no limit"],
  ["max_failures", "Retries of a trial", "retries of a trial after errors in the training code"],
  ["max_system_failures", "Retries after lost nodes", "retries of a trial after lost nodes and preemptions"],
  ["placement_timeout_s", "Waiting time, in seconds", "seconds to wait for resources once it is the trial's turn; a longer wait is a system failure"],
  ["hang_timeout_s", "Hang timeout, in seconds", "seconds without a report after which a trial counts as hung; empty: never"],
  ["stop_grace_s", "Time to stop, in seconds", "seconds that a rank has to leave the training function before its group is killed"],
] as const;
