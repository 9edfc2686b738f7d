/**
 * What this device has spent, in IndexedDB: one report per study, and a cap over all studies.
 *
 * A report is on disk before the caller gets it. After a crash the same bytes are handed out again; nothing is
 * drawn a second time. The ledger is as durable as the site's storage: whoever clears it clears the record.
 */

import type { Scheme } from "./scheme.js";
import { makeTask, type Task, type TaskDescription } from "./task.js";

/** Why no report is made; `reason` is one word. */
export class Refused extends Error {
  override name = "Refused";
  constructor(readonly reason: "reported" | "cap" | "changed", text: string) {
    super(text);
  }
}

function reported(study: string): Refused {
  return new Refused("reported", `this device has reported to ${study}`);
}

export interface Entry {
  readonly study: string;
  readonly epsilon: number;
  /** What the report answers, as JSON: identity and task. It is never used for anything else. */
  readonly request: string;
  /** The message, until the study has confirmed it. */
  readonly message: Uint8Array | null;
  /** Milliseconds since 1970. */
  readonly time: number;
}

/** Computes the vector to report from the device's data. */
export type Compute = () => ArrayLike<number> | Promise<ArrayLike<number>>;

const REPORTS = "reports", TICKETS = "tickets";

function result<T>(request: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

function finished(transaction: IDBTransaction): Promise<void> {
  return new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve();
    transaction.onabort = transaction.onerror = () =>
      reject(transaction.error ?? new Error("the ledger could not be written"));
  });
}

/** ε as a whole number of 2^-60, rounded up, so that sums are exact. */
function units(epsilon: number): bigint {
  return BigInt(Math.ceil(epsilon * 2 ** 60));
}

/** All that a report depends on, except the vector and the noise. */
function requestOf(scheme: Scheme, task: Task): string {
  const text = (_: string, value: unknown) => (typeof value === "bigint" ? String(value) : value);
  return JSON.stringify({ identity: scheme.identity, task }, text);
}

/** The report of what `compute` returns, or of zero if that fails: whether it fails may depend on data. */
async function drawn(scheme: Scheme, task: Task, compute: Compute): Promise<Uint8Array> {
  try {
    return scheme.encode(await compute(), task);
  } catch (error) {
    console.error("sqsgd: zero is reported, so that the server cannot tell:", error);
    return scheme.encode(new Float32Array(scheme.dim), task);
  }
}

export class Ledger {
  readonly #database: IDBDatabase;
  readonly #cap: number;

  private constructor(database: IDBDatabase, cap: number) {
    this.#database = database;
    this.#cap = cap;
  }

  /** Open the ledger. `cap`: the largest sum of ε over all studies, the same on every visit. */
  static async open(cap: number, name = "sqsgd ledger"): Promise<Ledger> {
    if (!(cap > 0 && cap <= 1e6)) throw new RangeError(`cap = ${cap} must be a number above 0, at most 1e6`);
    const opening = indexedDB.open(name, 1);
    opening.onupgradeneeded = () => {
      for (const store of [REPORTS, TICKETS]) opening.result.createObjectStore(store, { keyPath: "study" });
    };
    const database = await result(opening);
    database.onversionchange = () => database.close();
    await globalThis.navigator?.storage?.persist?.().catch(() => false); // ask that it is not evicted
    return new Ledger(database, cap);
  }

  close(): void {
    this.#database.close();
  }

  /**
   * The secret with which this device joins a study and reports to it: 64 hexadecimal digits.
   *
   * It is drawn once and is on disk before the promise resolves, so that a request can be repeated after a crash; all
   * tabs share it. Throws `Refused` if the study has confirmed its report: then no slot must be taken again.
   */
  async ticket(study: string): Promise<string> {
    const drawn = crypto.getRandomValues(new Uint8Array(32));
    const secret = Array.from(drawn, (byte) => byte.toString(16).padStart(2, "0")).join("");
    return this.#write(async (reports, tickets) => {
      const entry: Entry | undefined = await result(reports.get(study));
      if (entry && !entry.message) throw reported(study);
      const kept: { secret: string } | undefined = await result(tickets.get(study));
      if (!kept) tickets.add({ study, secret });
      return kept?.secret ?? secret;
    });
  }

  /** The report that was made for a study and not confirmed: to be sent again as it is. Null if there is none. */
  async unconfirmed(study: string): Promise<Uint8Array | null> {
    return (await this.entries()).find((entry) => entry.study === study)?.message ?? null;
  }

  /**
   * The one report of this device for a study, durable before the promise resolves.
   *
   * `compute` is called only if a report may be made. If it fails, or if its vector cannot be encoded, zero is
   * reported: no refusal depends on data. A report that was stored but not confirmed is returned again for the same
   * scheme and task. Throws `Refused` if the study has its report, if scheme or task differ from those of the stored
   * report, or if the cap does not allow ε.
   */
  async report(study: string, scheme: Scheme, given: Task | TaskDescription, compute: Compute): Promise<Uint8Array> {
    const task = makeTask(given);
    if (task.dim !== scheme.dim) {
      throw new RangeError(`task.dim = ${task.dim}, but this scheme is for ${scheme.dim} numbers`);
    }
    const { epsilon } = scheme, request = requestOf(scheme, task);
    this.#allow(await this.entries(), study, epsilon, request);
    const message = (await this.unconfirmed(study)) ?? (await drawn(scheme, task, compute));
    // Another tab may have written since: the check and the write below are one transaction.
    return this.#write(async (reports) => {
      const entries: Entry[] = await result(reports.getAll());
      this.#allow(entries, study, epsilon, request);
      const stored = entries.find((entry) => entry.study === study);
      if (!stored) reports.add({ study, epsilon, request, message, time: Date.now() } satisfies Entry);
      return stored?.message ?? message;
    });
  }

  /** The study has the report: its bytes and the ticket are forgotten, the entry stays. */
  async confirm(study: string): Promise<void> {
    await this.#write(async (reports, tickets) => {
      const entry: Entry | undefined = await result(reports.get(study));
      if (!entry) return;
      reports.put({ ...entry, message: null });
      tickets.delete(study);
    });
  }

  /** All reports of this device. */
  async entries(): Promise<Entry[]> {
    return result(this.#database.transaction(REPORTS).objectStore(REPORTS).getAll());
  }

  /** The sum of ε over all reports, rounded up. */
  async spent(): Promise<number> {
    const total = (await this.entries()).reduce((sum, entry) => sum + units(entry.epsilon), 0n);
    const rounded = Number(total) / 2 ** 60;
    return BigInt(rounded * 2 ** 60) < total ? rounded * (1 + 2 ** -52) : rounded;
  }

  /** One transaction, on disk before the promise resolves; aborted if the action throws. */
  async #write<T>(action: (reports: IDBObjectStore, tickets: IDBObjectStore) => Promise<T>): Promise<T> {
    const transaction = this.#database.transaction([REPORTS, TICKETS], "readwrite", { durability: "strict" });
    const done = finished(transaction);
    done.catch(() => undefined); // awaited below, unless the action fails first
    try {
      const found = await action(transaction.objectStore(REPORTS), transaction.objectStore(TICKETS));
      await done;
      return found;
    } catch (error) {
      if (transaction.error === null) transaction.abort();
      throw error;
    }
  }

  /** Throws `Refused` unless a report may be made, or returned again. */
  #allow(entries: readonly Entry[], study: string, epsilon: number, request: string): void {
    const stored = entries.find((entry) => entry.study === study);
    if (stored && !stored.message) throw reported(study);
    if (stored && (stored.request !== request || stored.epsilon !== epsilon)) {
      throw new Refused("changed", `${study} asks for something else than this device's report answers`);
    }
    const spent = entries.reduce((sum, entry) => sum + units(entry.epsilon), 0n);
    if (!stored && spent + units(epsilon) > units(this.#cap)) {
      throw new Refused("cap", `a report of ε = ${epsilon} to ${study} would exceed this device's cap of ${this.#cap}`);
    }
  }
}
