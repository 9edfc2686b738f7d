/** Locally private reports of a few bytes: the client of sqsgd. docs/encoder.md specifies every step. */

export { MalformedReport } from "./columns.js";
export { Ledger } from "./ledger.js";
export { Scheme } from "./scheme.js";
export { normalised, softHog } from "./softhog.js";
export { checkWeights, probabilities, softmaxGradient, type Gradient } from "./softmax.js";
export { Refused, type Report, type Terms } from "./terms.js";
export { makeTask, type Task, type TaskDescription } from "./task.js";
export { ServiceRefused, Visit, type Compute, type Options, type Round, type Sent, type Summary } from "./visit.js";
