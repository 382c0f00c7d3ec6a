import { Button, CloseButton, TextInput } from "@mantine/core";
import { useState } from "react";
import { Select } from "../parts/common/Select";
import { domainWords } from "../parts/setup/Setup";
import classes from "./NewExperimentPage.module.css";
import { asKind, fieldText, freshName, KINDS, rowsOfSpace, withText, type SpaceRow } from "./space";
import type { Spec } from "./spec";

interface SpaceFieldsProps {
  spec: Spec | null;
  /** What is wrong with a field, by its pointer, such as /space/lr/lower. */
  wrong: Readonly<Record<string, string>>;
  /** Change one parameter of the space; undefined removes it. */
  onChange: (name: string, domain: unknown) => void;
  onRename: (from: string, to: string) => void;
}

const TITLES: Readonly<Record<string, string>> = {
  lower: "from",
  upper: "to",
  q: "step",
  categories: "values",
  values: "values",
  value: "value",
};

/** The parameters of the search space, each with its domain. Those that a form cannot show are named, to be edited in the YAML. */
export function SpaceFields({ spec, wrong, onChange, onRename }: SpaceFieldsProps) {
  const rows = rowsOfSpace(spec);
  return (
    <div className={classes.space} role="group" aria-label="Search space">
      {rows.map((row, i) => (
        <Row
          key={i}
          row={row}
          wrongAt={(field) => wrong[`/space/${row.name.replaceAll("~", "~0").replaceAll("/", "~1")}${field}`]}
          taken={rows.map(({ name }) => name)}
          onChange={(domain) => onChange(row.name, domain)}
          onRename={(to) => onRename(row.name, to)}
        />
      ))}
      <Button
        size="compact-sm"
        variant="default"
        onClick={() => onChange(freshName(rows), { type: "uniform", lower: 0, upper: 1 })}
      >
        Add a parameter
      </Button>
    </div>
  );
}

interface RowProps {
  row: SpaceRow;
  /** What is wrong with a field such as "/lower"; with the parameter itself for "". */
  wrongAt: (field: string) => string | undefined;
  taken: readonly string[];
  onChange: (domain: unknown) => void;
  onRename: (to: string) => void;
}

function Row({ row: { name, domain, kind }, wrongAt, taken, onChange, onRename }: RowProps) {
  const names = (text: string) => {
    const to = text.trim();
    if (to === "") return "give it a name";
    if (to === name) return null;
    if (taken.includes(to)) return "another parameter has this name";
    onRename(to);
    return null;
  };
  return (
    <div className={classes.parameter} role="group" aria-label={`Parameter ${name}`}>
      <Typed label={`Name of ${name}`} title="name" text={name} mistake={wrongAt("")} onDone={names} wide />
      {kind === null ? (
        <span className={classes.domain}>
          <code>{domainWords(domain)}</code> (edit it in the YAML)
        </span>
      ) : (
        <>
          <Select
            size="xs"
            className={classes.kind}
            label="domain"
            aria-label={`Domain of ${name}`}
            allowDeselect={false}
            data={Object.keys(KINDS)}
            renderOption={({ option }) => KINDS[option.value]?.label}
            value={kind}
            comboboxProps={{ width: 300, position: "bottom-start" }}
            onChange={(next) => next && onChange(asKind(domain, next))}
          />
          {KINDS[kind]!.fields.map((field) => (
            <Typed
              key={field}
              label={`${TITLES[field]} of ${name}`}
              title={TITLES[field]!}
              text={fieldText(domain, field)}
              mistake={wrongAt(`/${field}`)}
              onDone={(text) => {
                onChange(withText(domain, field, text));
                return null;
              }}
              wide={!["lower", "upper", "q"].includes(field)}
            />
          ))}
        </>
      )}
      <CloseButton
        size="sm"
        className={classes.remove}
        aria-label={`Remove ${name} from the space`}
        onClick={() => onChange(undefined)}
      />
    </div>
  );
}

interface TypedProps {
  label: string;
  title: string;
  text: string;
  /** What the service says about the text. */
  mistake: string | undefined;
  /** Take the text. Return what is wrong with it, or null. */
  onDone: (text: string) => string | null;
  wide: boolean;
}

/** A text field whose value takes effect on Enter, or when the focus moves on. A text that is refused stays, with the reason. */
function Typed({ label, title, text, mistake, onDone, wide }: TypedProps) {
  const [typed, setTyped] = useState<{ of: string; draft: string; wrong: string | null } | null>(null);
  // A row that is removed leaves its place to the next one, which must not show what was typed for it.
  const { draft, wrong } = typed?.of === text ? typed : { draft: text, wrong: null };
  const done = () => {
    const found = draft === text ? null : onDone(draft);
    setTyped(found === null ? null : { of: text, draft, wrong: found });
  };
  return (
    <TextInput
      size="xs"
      label={title}
      aria-label={label}
      wrapperProps={{ "data-wide": wide }}
      spellCheck={false}
      value={draft}
      error={wrong ?? (draft === text && mistake)}
      onChange={(event) => setTyped({ of: text, draft: event.currentTarget.value, wrong: null })}
      onBlur={done}
      onKeyDown={(event) => event.key === "Enter" && done()}
    />
  );
}
