/** The terms of a study: bytes whose digest is its id. What a device does not take part in is refused. */

import { hex, sha, unhex, type Bytes } from "./bytes.js";
import { Scheme } from "./scheme.js";
import { makeTask, type Task } from "./task.js";
import { TokenKey, type Blind } from "./token.js";
import { below, SecureWords, uniform, type Words } from "./words.js";

/** Why this device does not report; `reason` is one word. */
export class Refused extends Error {
  override name = "Refused";
  constructor(readonly reason: "browser" | "cap" | "changed" | "study", text: string) {
    super(text);
  }
}

/** https, unless it is on this machine; without a slash at the end. */
export function checkAddress(text: unknown): string {
  const url = new URL(String(text));
  if (url.protocol !== "https:" && !["127.0.0.1", "localhost", "[::1]"].includes(url.hostname)) {
    throw new Refused("study", `${url} must begin with https://`);
  }
  return String(text).replace(/\/+$/, "");
}

/** One report of this device. What is not needed any more is deleted: when it is accepted, all but its state and ε. */
export interface Report {
  state: "waiting" | "accepted" | "missed";
  /** The drawn round; where devices report when they come, null until the report is made. */
  round: number | null;
  /** When it is sent at the earliest, in seconds since 1970. */
  due: number;
  blind?: Blind;
  token?: Bytes;
  /** Paid, before the app computes. */
  epsilon?: number;
  /** The request, stored before it is sent. */
  body?: string;
}

const SPREAD = 0.9; // of a round; the rest is left for retries
const LIMITS: Record<string, [number, number]> = {
  dim: [1, 2 ** 24], rounds: [1, 1e6], reports: [1, 1000], begins: [0, 2 ** 40], seed: [0, 2 ** 53 - 1],
  request_bytes: [1024, 2 ** 20],
};

export class Terms {
  readonly name: string;
  readonly rounds: number;
  /** Reports of one device. */
  readonly reports: number;
  /** Whether a device draws its rounds. Otherwise it reports when it comes. */
  readonly drawn: boolean;
  readonly relay: string | null;
  readonly requestBytes: number;
  readonly #known: Record<string, any>;

  private constructor(
    readonly id: string,
    readonly description: Bytes,
    known: Record<string, any>,
    readonly scheme: Scheme,
    readonly key: TokenKey,
    /** Signs the gateway's keys (Ed25519). */
    readonly signer: Bytes,
  ) {
    this.#known = known;
    this.name = String(known.name);
    [this.rounds, this.reports, this.requestBytes] = [known.rounds, known.reports, known.request_bytes];
    this.drawn = known.visits === "drawn";
    this.relay = known.relay === null ? null : checkAddress(known.relay);
  }

  /** Throws `Refused` for a study that this client does not take part in. */
  static async of(description: Bytes): Promise<Terms> {
    try {
      const known = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(description));
      if (known?.format !== 1) throw new RangeError("it is not in format 1");
      for (const [name, [least, most]] of Object.entries(LIMITS)) {
        if (!Number.isSafeInteger(known[name]) || known[name] < least || known[name] > most) {
          throw new RangeError(`${name} = ${known[name]} must be a whole number from ${least} to ${most}`);
        }
      }
      const seconds = known.round_seconds;
      if (typeof seconds !== "number" || !(seconds >= 0.1 && seconds <= 1e9)) throw new RangeError("round_seconds");
      if (!["drawn", "once"].includes(known.visits)) throw new RangeError("visits");
      const scheme = new Scheme(known.identity), task = { ...known, round: 0, client: 0, clip: null } as Task;
      if (scheme.dim !== makeTask(task).dim || scheme.identity.includes("shared=0")) {
        throw new RangeError("its reports are not the same for all devices of a round");
      }
      if (hex(scheme.fingerprint.reverse()) !== known.fingerprint) throw new RangeError("fingerprint");
      if (!/^[0-9a-f]{64}$/.test(known.gateway_key)) throw new RangeError("gateway_key");
      const id = hex(await sha(256, description)), key = await TokenKey.of(known.token_key);
      return new Terms(id, description, known, scheme, key, unhex(known.gateway_key));
    } catch (error) {
      throw new Refused("study", `this browser does not take part in this study: ${(error as Error).message}`);
    }
  }

  /** The task of all devices of a round. */
  task(round: number): Task {
    const { seed, dim, bound } = this.#known;
    return makeTask({ round, client: 0, seed, dim, bound });
  }

  /** The time of a place in the schedule, in seconds since 1970; 2.5 is the middle of round 2. */
  at(place: number): number {
    return this.#known.begins + place * this.#known.round_seconds;
  }

  /** A device's part: each round is uniform and independent of everything, and so is the time within it. */
  draw(words: Words = new SecureWords()): Report[] {
    return Array.from({ length: this.reports }, () => {
      const round = this.drawn ? below(this.rounds, words) : null;
      const due = round === null ? 0 : this.at(round + SPREAD * uniform(words));
      return { state: "waiting", round, due, blind: this.key.draw() };
    });
  }
}
