/** Entries of the audit trail in words. */

import { EXPERIMENT_VERBS, TRIAL_VERBS } from "../api/verbs";

const CHECKED = "checked a spec";

const VERBS = [
  ["experiments", EXPERIMENT_VERBS],
  ["trials", TRIAL_VERBS],
] as const;

/** The words for each call that changes something, by its method and path. Its subject is added at the end. */
const WORDS: readonly (readonly [string, RegExp, string])[] = [
  ["POST", /^experiments$/, "created an experiment"],
  ["POST", /^experiments\/dry-run$/, CHECKED],
  ["PATCH", /^experiments\/([^/]+)$/, "edited"],
  ["DELETE", /^experiments\/([^/]+)$/, "deleted"],
  ...VERBS.flatMap(([where, verbs]) =>
    Object.entries(verbs).map(([name, { past }]) => ["POST", RegExp(`^${where}/([^/]+)/${name}$`), past] as const),
  ),
  ["POST", /^experiments\/([^/]+)\/archive$/, "archived"],
  ["POST", /^experiments\/([^/]+)\/unarchive$/, "brought back"],
  ["POST", /^experiments\/([^/]+)\/fork$/, "forked"],
  ["POST", /^experiments\/([^/]+)\/enqueue$/, "enqueued a configuration in"],
  ["POST", /^experiments\/([^/]+)\/replay$/, "replayed"],
  ["POST", /^trials\/([^/]+)\/fork$/, "forked"],
  ["POST", /^trials\/([^/]+)\/profile$/, "profiled"],
  ["POST", /^checkpoints\/([^/]+)\/pin$/, "pinned"],
  ["POST", /^checkpoints\/([^/]+)\/unpin$/, "unpinned"],
  ["POST", /^session$/, "signed in"],
  ["DELETE", /^session$/, "signed out"],
  ["POST", /^tokens$/, "created a token"],
  ["POST", /^tokens\/([^/]+)\/revoke$/, "revoked the token"],
  ["PATCH", /^projects\/([^/]+)$/, "changed the settings of the project"],
  ["POST", /^webhooks$/, "created a webhook"],
  ["PATCH", /^webhooks\/([^/]+)$/, "changed the webhook"],
  ["DELETE", /^webhooks\/([^/]+)$/, "deleted the webhook"],
  ["POST", /^webhooks\/([^/]+)\/test$/, "tested the webhook"],
  ["POST", /^experiments\/([^/]+)\/assignments$/, "took a trial of"],
  ["POST", /^experiments\/([^/]+)\/assignments\/[^/]+\/reports$/, "reported for a trial of"],
  ["POST", /^experiments\/([^/]+)\/assignments\/[^/]+\/checkpoints$/, "saved a checkpoint for a trial of"],
  ["POST", /^experiments\/([^/]+)\/assignments\/[^/]+\/heartbeat$/, "sent a heartbeat for a trial of"],
  ["POST", /^experiments\/([^/]+)\/assignments\/[^/]+\/log$/, "sent the log of a trial of"],
  ["POST", /^experiments\/([^/]+)\/assignments\/[^/]+\/complete$/, "completed a trial of"],
  ["POST", /^experiments\/([^/]+)\/assignments\/[^/]+\/fail$/, "failed a trial of"],
  ["POST", /^experiments\/([^/]+)\/assignments\/[^/]+\/release$/, "gave back a trial of"],
  ["PUT", /^bundles\/([^/]+)$/, "uploaded the code bundle"],
];

export interface Said {
  words: string;
  /** The id of the object that the call changed, if the URL contains it, or of the one that it created. */
  subject: string | null;
  /** The id of the new object that the call made from its subject. */
  made: string | null;
}

/** Say what a call did, such as "paused", and to which object. For an unknown path, the words are the method and the path. */
export function said(method: string, path: string, created: string | null = null): Said {
  const short = path.replace(/^.*?\/api\/v1\//, "").replace(/\/$/, "");
  for (const [verb, pattern, words] of WORDS) {
    const match = verb === method ? pattern.exec(short) : null;
    if (!match) continue;
    const subject = match[1] ?? null;
    if (subject !== null || created === null) return { words, subject, made: created };
    return { words: words.replace(/^created an? /, "created the "), subject: created, made: null };
  }
  return { words: `${method} ${path}`, subject: null, made: created };
}

/** The number of changes that the page shows. */
export const MOST_CHANGES = 50;

/**
 * The latest entries that changed something, or that failed. The form for a new experiment checks its spec whenever the user
 * stops typing. These checks are left out, unless the user may not make them or the service failed.
 */
export function changesAmong<T extends { method: string; path: string; status: number }>(
  entries: readonly T[],
  most = MOST_CHANGES,
): T[] {
  return entries
    .filter(({ method, path, status }) => said(method, path).words !== CHECKED || isOdd(status))
    .slice(0, most);
}

/** Whether a check of a spec ended with more than "valid" or "not valid". */
function isOdd(status: number): boolean {
  return status === 401 || status === 403 || status >= 500;
}

/** Say how a call ended. */
export function outcome(status: number): { words: string; good: boolean } {
  if (status < 400) return { words: "done", good: true };
  if (status === 401) return { words: "refused: not signed in", good: false };
  if (status === 403) return { words: "refused: not allowed", good: false };
  if (status === 404) return { words: "failed: not found", good: false };
  if (status === 409) return { words: "refused: its state does not allow it", good: false };
  if (status === 412 || status === 428) return { words: "refused: it was changed in the meantime", good: false };
  if (status === 400 || status === 422) return { words: "refused: not valid", good: false };
  if (status === 429) return { words: "refused: too many attempts", good: false };
  return { words: `failed: ${status}`, good: false };
}

/** The page of an experiment or a trial; null for anything else. */
export function pageOf(id: string): string | null {
  if (id.startsWith("exp_")) return `/experiments/${id}`;
  if (id.startsWith("trl_")) return `/trials/${id}`;
  return null;
}
