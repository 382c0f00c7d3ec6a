import { createContext, useContext, type ReactNode } from "react";

/** The level of headings within a trial: it depends on whether the trial has a page of its own or is a part of another page. */
export const HeadingLevel = createContext<2 | 3>(3);

export function Heading({ children }: { children: ReactNode }) {
  const Tag = `h${useContext(HeadingLevel)}` as const;
  return <Tag>{children}</Tag>;
}
