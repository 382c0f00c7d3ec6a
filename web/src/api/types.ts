/** Short names for the HTTP API's responses. schema.ts is generated from its OpenAPI document: `python web/build.py types`. */

import type { components } from "./schema";

type Schemas = components["schemas"];

export type Experiment = Schemas["Experiment"];
export type Trial = Schemas["Trial"];
export type TrialPage = Schemas["TrialPage"];
export type TrialSample = Schemas["TrialSample"];
export type TrialWithSegments = Schemas["TrialDetail"];
export type Segment = Schemas["Segment"];
export type CheckpointItem = Schemas["CheckpointItem"];
export type Failure = Schemas["Failure"];
export type Curves = Omit<Schemas["Curves"], "series"> & { series: Series[] };
export type Series = Omit<Schemas["Series"], "segments"> & { segments: CurveSegment[] };
/** A part of a curve. `own`: it begins with an exploit of the trial's own checkpoint, which changes only its parameters. */
export type CurveSegment = Schemas["CurveSegment"] & { own?: true };
export type BestSoFar = Schemas["BestSoFar"];
export type BestOverTime = Schemas["BestSoFarOf"];
export type Project = Schemas["Project"];
export type ProjectPatch = Schemas["ProjectPatch"];
export type TrialCurves = Schemas["TrialCurves"];
export type SegmentItem = Schemas["SegmentItem"];
export type Decision = Schemas["Decision"];
export type LogEntry = Schemas["LogEntry"];
export type Changes = Schemas["Changes"];
export type Point = Schemas["Point"];
export type LogPart = Schemas["LogItem"];
export type UsageSeries = Schemas["UsageSeries"];
export type DataSet = Schemas["DataSet"];
export type Profile = Schemas["Profile"];
export type ProfileAsked = Pick<Schemas["ProfileRequest"], "rank" | "kind" | "duration_s">;
export type Lineage = Schemas["Lineage"];
export type LineageSegment = Schemas["LineageSegment"];
export type Importances = Schemas["Importances"];
export type Neighbors = Schemas["Neighbors"];
export type Scaling = Schemas["Scaling"];
export type Cluster = Schemas["Cluster"];
export type Webhook = Schemas["Webhook"];
export type Timeline = Schemas["Timeline"];
export type DryRun = Schemas["DryRun"];
export type Forecast = Schemas["Forecast"];
export type Replay = Schemas["Replay"];
export type SpecCopy = Schemas["SpecCopy"];
export type Problem = Schemas["Problem"];

export type ExperimentState = Experiment["state"];
export type TrialState = Trial["state"];
export type DecisionKind = Decision["kind"];
export type Mode = Experiment["mode"];
export type XAxis = Curves["x"];
export type Params = Trial["params"];

export interface Page<T> {
  items: T[];
  next_page_token: string | null;
}
