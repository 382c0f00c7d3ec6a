import { Anchor } from "@mantine/core";
import { Suspense, type ReactNode } from "react";
import { Link } from "react-router";
import type { Experiment } from "../../api/types";
import { longestOf, moment, param, trained } from "../../format";
import { tagsText } from "../actions/tags";
import { lazily } from "../common/lazily";
import { Facts } from "../common/Panel";
import classes from "../common/parts.module.css";

const Notes = lazily(() => import("./Notes"));

/** Show what was requested and what it means: the space and every section of the spec. */
export function Setup({ experiment }: { experiment: Experiment }) {
  const { objectives, resolved } = experiment;
  const scheduler = resolved?.scheduler ?? experiment.scheduler;
  const search = resolved
    ? (resolved.search ?? { type: "none: the scheduler proposes the configurations" })
    : experiment.search;
  const longest = longestOf(experiment);
  const sections: [string, Record<string, unknown>][] = [
    [experiment.search["type"] === "auto" && resolved?.search ? "Search (auto)" : "Search", search],
    [experiment.scheduler["type"] === "auto" ? "Scheduler (auto)" : "Scheduler", scheduler],
    ["Scaling", experiment.scaling],
    ["Limits", experiment.limits],
  ];
  return (
    <div className={classes.setup}>
      <section>
        <h3>Experiment</h3>
        <Facts
          items={[
            [
              objectives.length > 1 ? "Objectives" : "Objective",
              objectives.map(({ metric, mode }) => `${mode} ${metric}`).join(", "),
            ],
            ["Entrypoint", experiment.entrypoint ?? "a function, by value"],
            ["Maximum trials", experiment.num_samples ?? "as many as the time budget allows"],
            ["Longest trial", longest === null ? "no limit" : trained(param(longest), experiment.time_attr)],
            ...(resolved?.budget ? [["Budget at the start", resolved.budget] as [string, string]] : []),
            ["Seed", param(experiment.seed)],
            [
              "Priority",
              `${experiment.priority}${experiment.weight === 1 ? "" : `, weight ${param(experiment.weight)}`}`,
            ],
            ["Project", experiment.project],
            ["Labels", tagsText(experiment.tags) || "none"],
            ...(experiment.warm_start ? [["Learned from", learnedWords(experiment)] as [string, string]] : []),
            ...(experiment.forked_from
              ? [
                  [
                    "Forked from",
                    <Anchor component={Link} to={`/experiments/${experiment.forked_from}`} size="sm">
                      {experiment.forked_from}
                    </Anchor>,
                  ] as [string, ReactNode],
                ]
              : []),
            ["Created", moment(experiment.created_at)],
            ["Id", <code>{experiment.id}</code>],
          ]}
        />
      </section>
      <section>
        <h3>Space</h3>
        <Facts items={domainsOf(experiment.space).map(([name, words]) => [name, <code>{words}</code>])} />
      </section>
      {experiment.notes && (
        <section>
          <h3>Notes</h3>
          <Suspense fallback={<p className={classes.notes}>{experiment.notes}</p>}>
            <Notes text={experiment.notes} />
          </Suspense>
        </section>
      )}
      {sections.map(([title, section]) => (
        <section key={title}>
          <h3>{title}</h3>
          <Facts
            items={Object.entries(section)
              .filter(([, value]) => value !== null)
              .map(([name, value]) => [name, domainWords(value)])}
          />
        </section>
      ))}
    </div>
  );
}

/** "digits, digits-2": the earlier experiments that the search began with. */
export function learnedWords({ learned_from }: Pick<Experiment, "learned_from">): string {
  return learned_from.join(", ") || "nothing; a note under Decisions says why";
}

/** The path of each parameter of a space, such as "optimizer/lr", with its domain in words. */
export function domainsOf(space: Readonly<Record<string, unknown>>, before = ""): [string, string][] {
  return Object.entries(space).flatMap(([name, domain]) =>
    isNested(domain)
      ? domainsOf(domain, `${before}${name}/`)
      : [[`${before}${name}`, domainWords(domain)] as [string, string]],
  );
}

/** True for an object of parameters; false for a domain, also one in Ray's form {"grid_search": [...]}. */
function isNested(domain: unknown): domain is Readonly<Record<string, unknown>> {
  if (domain === null || typeof domain !== "object" || Array.isArray(domain)) return false;
  const { type, grid_search: grid } = domain as Record<string, unknown>;
  const size = Object.keys(domain).length;
  return size > 0 && typeof type !== "string" && !(size === 1 && Array.isArray(grid));
}

/** {"type": "loguniform", "lower": 0.001, "upper": 0.1} as loguniform(0.001, 0.1), also within other values. */
export function domainWords(domain: unknown): string {
  if (!holdsObject(domain)) return param(domain);
  if (Array.isArray(domain)) return `[${domain.map(domainWords).join(", ")}]`;
  const { type, ...rest } = domain as Readonly<Record<string, unknown>>;
  if (typeof type === "string")
    return `${type}(${Object.values(rest)
      .filter((value) => value !== null)
      .map(domainWords)
      .join(", ")})`;
  return `{${Object.entries(domain)
    .map(([name, value]) => `${name}: ${domainWords(value)}`)
    .join(", ")}}`;
}

function holdsObject(value: unknown): value is object {
  if (Array.isArray(value)) return value.some(holdsObject);
  return value !== null && typeof value === "object";
}
