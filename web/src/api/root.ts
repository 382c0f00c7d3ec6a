/**
 * The path under which the service is reached, with a slash at its end. A proxy may serve it under a prefix that
 * the service does not know; so the path is taken from the address of this module: the bundle lies in `assets/` below the root.
 */
export const ROOT = /^(.*\/)assets\/[^/]+$/.exec(new URL(import.meta.url).pathname)?.[1] ?? "/";
