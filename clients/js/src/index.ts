/** Locally private reports of a few bytes: the client of sqsgd. docs/encoder.md specifies every step. */

export { MalformedReport } from "./columns.js";
export { Scheme } from "./scheme.js";
export { makeTask, type Task, type TaskDescription } from "./task.js";
