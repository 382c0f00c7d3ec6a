import { clock, moment, newDay } from "../../format";

interface ClockProps {
  time: string;
  /** The time of the row before; absent for the first row. */
  before: string | undefined;
  title?: string;
}

/** The time of a row, below its date if that is not the date of the row before. For the first row, today's date is left out. */
export function Clock({ time, before, title = moment(time) }: ClockProps) {
  const day = newDay(time, before);
  return (
    <time dateTime={time} title={title}>
      {day !== null && <b style={{ display: "block" }}>{day} </b>}
      {clock(time)}
    </time>
  );
}
