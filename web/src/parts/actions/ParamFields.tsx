import { TextInput } from "@mantine/core";
import { paramName, type Labels } from "../../format";
import { Select } from "../common/Select";
import classes from "./actions.module.css";
import { mistakesIn, type Field } from "./values";
import { own } from "../../own";

interface ParamFieldsProps {
  fields: readonly Field[];
  labels: Labels;
  texts: Readonly<Record<string, string>>;
  placeholder: string;
  /** What the service says about the texts that were sent. A field is marked until it is changed. */
  error: Error | null;
  sent: Readonly<Record<string, string>> | undefined;
  /** The first field has the focus when the form is opened. */
  first?: boolean;
  onChange: (texts: Record<string, string>) => void;
}

/** A field for each parameter: typed, or chosen from its categories. */
export function ParamFields(props: ParamFieldsProps) {
  const { fields, labels, texts, placeholder, error, sent, first = false, onChange } = props;
  const mistakes = mistakesIn(error);
  const wrong = (name: string) => sent && own(sent, name) === own(texts, name) && own(mistakes, name);
  return (
    <div className={classes.pair}>
      {fields.map((field, i) =>
        field.options ? (
          <Select
            key={field.name}
            label={paramName(field.name, labels)}
            description={field.about}
            error={wrong(field.name)}
            data-autofocus={(first && i === 0) || undefined}
            placeholder={placeholder}
            clearable
            data={[...new Set(field.options.map(({ text }) => text))]}
            value={own(texts, field.name) || null}
            onChange={(value) => onChange({ ...texts, [field.name]: value ?? "" })}
          />
        ) : (
          <TextInput
            key={field.name}
            label={paramName(field.name, labels)}
            description={field.about}
            error={wrong(field.name)}
            data-autofocus={(first && i === 0) || undefined}
            placeholder={placeholder}
            value={own(texts, field.name) ?? ""}
            autoComplete="off"
            onChange={(event) => onChange({ ...texts, [field.name]: event.currentTarget.value })}
          />
        ),
      )}
    </div>
  );
}
