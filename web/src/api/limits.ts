/** Name, label and meaning of each limit, and the word that it may be instead of a number. `python web/build.py types` writes this file; do not edit it. */
export const LIMITS = [
  ["max_concurrent_trials", "Trials at the same time", "trials that may run at the same time; empty: as many as the cluster holds", null],
  ["time_budget_s", "Running time, in seconds", "running time in seconds after which the search ends, counted from the start of the first trial. Starting Ray and the workers does not count, and neither do pauses", null],
  ["budget", "Budget, in full trainings", "training that all trials together may spend, as a number of full trainings of max_t each; empty: a fifth of num_samples, but at least 3. Only the default scheduler, freeze_thaw, uses it. With any other scheduler it is an error: use num_samples instead", null],
  ["gpu_hours", "GPU hours", "GPU hours that all trials together may use. Once they are used up, the trials end at their next report, or after stop_grace_s. A GPU counts for as long as a rank holds it", null],
  ["max_failed_trials", "Failed trials that end the search", "failed trials after which the search ends as failed; `continue` resets the count; empty: no limit", null],
  ["repeats", "Repeats of leading configurations", "how many times leading configurations may be evaluated again once the search has used its trials or its budget, if results differ from run to run. Each repeat is a trial of its own. The best configuration is then the one with the best expected value over its runs. auto: as many as are worthwhile, using at most a fifth of the training before them", "auto"],
  ["max_failures", "Retries of a trial", "retries of a trial after errors in the training code", null],
  ["max_system_failures", "Retries after lost nodes", "retries of a trial after lost nodes and preemptions", null],
  ["placement_timeout_s", "Waiting time, in seconds", "seconds to wait for resources once it is the trial's turn; a longer wait is a system failure", null],
  ["hang_timeout_s", "Hang timeout, in seconds", "seconds without a report after which a trial counts as hung; empty: never", null],
  ["stop_grace_s", "Time to stop, in seconds", "seconds that a rank may take to leave the training function before its group is killed", null],
] as const;
