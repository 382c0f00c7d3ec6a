import { Select, TextInput } from "@mantine/core";
import { paramName, type Labels } from "../../format";
import classes from "./actions.module.css";
import type { Field } from "./values";

interface ParamFieldsProps {
  fields: readonly Field[];
  labels: Labels;
  texts: Readonly<Record<string, string>>;
  placeholder: string;
  onChange: (texts: Record<string, string>) => void;
}

/** A field for each parameter: typed, or chosen from its categories. */
export function ParamFields({ fields, labels, texts, placeholder, onChange }: ParamFieldsProps) {
  return (
    <div className={classes.pair}>
      {fields.map((field) =>
        field.options ? (
          <Select
            key={field.name}
            label={paramName(field.name, labels)}
            description={field.about}
            placeholder={placeholder}
            clearable
            data={[...new Set(field.options.map(({ text }) => text))]}
            value={texts[field.name] || null}
            onChange={(value) => onChange({ ...texts, [field.name]: value ?? "" })}
          />
        ) : (
          <TextInput
            key={field.name}
            label={paramName(field.name, labels)}
            description={field.about}
            placeholder={placeholder}
            value={texts[field.name] ?? ""}
            autoComplete="off"
            onChange={(event) => onChange({ ...texts, [field.name]: event.currentTarget.value })}
          />
        ),
      )}
    </div>
  );
}
