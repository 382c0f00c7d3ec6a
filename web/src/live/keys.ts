/** The cache keys of the service's answers. All keys of an experiment begin with ["experiment", id]. */

import { formatAcross, type Across } from "../curves/across";

export const keys = {
  experiments: ["experiments"] as const,
  experiment: (id: string) => ["experiment", id] as const,
  trials: (id: string) => ["experiment", id, "trials"] as const,
  rows: (id: string) => ["experiment", id, "rows"] as const,
  curves: (id: string, metric: string, across: Across) =>
    ["experiment", id, "curves", metric, formatAcross(across)] as const,
  allCurves: (id: string) => ["experiment", id, "curves"] as const,
  segments: (id: string) => ["experiment", id, "segments"] as const,
  importance: (id: string, metric: string | null = null, where: readonly string[] = []) =>
    ["experiment", id, "importance", metric, ...where] as const,
  decisions: (id: string) => ["experiment", id, "decisions"] as const,
  trial: (id: string) => ["trial", id] as const,
  trialDecisions: (id: string) => ["trial", id, "decisions"] as const,
  trialCheckpoints: (id: string) => ["trial", id, "checkpoints"] as const,
  trialCurves: (id: string, across: Across) => ["trial", id, "curves", formatAcross(across)] as const,
  /** What was typed on the page of an entry of the history, and is not sent. */
  draft: (entry: string) => ["draft", entry] as const,
  /** What was typed into the open form for editing an experiment. */
  typed: (id: string) => ["typed", id] as const,
};
