import type { api } from "../../api/client";

export type Session = Awaited<ReturnType<typeof api.session>>;

/** A text that tells apart who is signed in. Two tokens may have the same name, so it includes the rights. */
export function identity({ name, role, project }: Pick<Session, "name" | "role" | "project">): string {
  return JSON.stringify([name, role, project]);
}
