/** The public face of an encoder: its noise comes from the platform's generator and cannot be seeded. */

import { Encoder } from "./encoder.js";
import type { Task } from "./task.js";
import { SecureWords } from "./words.js";

/** A scheme for vectors of one length. Make it once per study: its tables take longer than a report. */
export class Scheme {
  readonly #encoder: Encoder;
  readonly #words = new SecureWords();

  /** `identity`: the lines that describe the scheme, as a list or one text. */
  constructor(identity: string | readonly string[]) {
    this.#encoder = new Encoder(typeof identity === "string" ? identity : identity.join("\n"));
  }

  /** The text that the fingerprint is made of. */
  get identity(): string {
    return this.#encoder.identity;
  }

  get name(): string {
    return this.#encoder.name;
  }

  get dim(): number {
    return this.#encoder.dim;
  }

  /** The ε of one report. */
  get epsilon(): number {
    return this.#encoder.epsilon;
  }

  /** Bytes of a message. */
  get bytes(): number {
    return this.#encoder.bytes;
  }

  get fingerprint(): Uint8Array {
    return this.#encoder.fingerprint.slice();
  }

  /**
   * The report of a vector. It costs `epsilon`; `Visit.report` pays for it.
   *
   * Throws RangeError for a vector that is too short or too long, not finite, or beyond ±1e13. A server must not learn
   * of such an error: `Visit.report` turns it into a report of zero.
   */
  encode(x: ArrayLike<number>, task: Task): Uint8Array {
    return this.#encoder.encode(x, task, this.#words);
  }

  /** The columns of a message; throws MalformedReport if it is not valid for the task. */
  open(message: Uint8Array, task: Task): number[][] {
    return this.#encoder.open(message, task);
  }
}
