/**
 * The path under which the service is reached, with a slash at its end. A proxy may serve it under a prefix, of which the service
 * need not know; this module's own address tells, as the bundle lies in `assets/` below the root.
 */
export const ROOT = /^(.*\/)assets\/[^/]+$/.exec(new URL(import.meta.url).pathname)?.[1] ?? "/";
