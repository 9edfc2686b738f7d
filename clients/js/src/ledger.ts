/**
 * What this device has spent, in IndexedDB: one report per study, and a cap over all studies.
 *
 * A report is on disk before the caller gets it. After a crash the same bytes are handed out again; nothing is
 * drawn a second time. The ledger is as durable as the site's storage: whoever clears it clears the record.
 */

/** Why no report is made; `reason` is one word. */
export class Refused extends Error {
  override name = "Refused";
  constructor(readonly reason: "reported" | "cap" | "changed", text: string) {
    super(text);
  }
}

export interface Entry {
  readonly study: string;
  readonly epsilon: number;
  /** What the report answers, such as its task: the same report is never used for another. */
  readonly request: string;
  /** The message, until the study has confirmed it. */
  readonly message: Uint8Array | null;
  /** Milliseconds since 1970. */
  readonly time: number;
}

const STORE = "reports";

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
    opening.onupgradeneeded = () => opening.result.createObjectStore(STORE, { keyPath: "study" });
    const database = await result(opening);
    database.onversionchange = () => database.close();
    await globalThis.navigator?.storage?.persist?.().catch(() => false); // ask that it is not evicted
    return new Ledger(database, cap);
  }

  close(): void {
    this.#database.close();
  }

  /**
   * The one report of this device for a study, durable before the promise resolves.
   *
   * `draw` makes it and is called at most once per study and device whose report is used. If the study's report
   * was stored but not confirmed, the stored bytes are returned for the same `request`. Throws `Refused` if the
   * study has its report, if the request differs from the stored one, or if the cap does not allow it.
   */
  async report(study: string, epsilon: number, request: string, draw: () => Uint8Array): Promise<Uint8Array> {
    if (!(epsilon > 0 && epsilon < Infinity)) throw new RangeError(`epsilon = ${epsilon} must be finite and above 0`);
    const before = await this.entries();
    this.#allowed(before, study, epsilon, request);
    const message = before.find((entry) => entry.study === study)?.message ?? draw();
    // Another tab may have written since: the check and the write below are one transaction.
    const transaction = this.#database.transaction(STORE, "readwrite", { durability: "strict" });
    const done = finished(transaction);
    done.catch(() => undefined); // awaited below, unless the check fails first
    const store = transaction.objectStore(STORE);
    const entries: Entry[] = await result(store.getAll());
    const stored = entries.find((entry) => entry.study === study);
    try {
      this.#allowed(entries, study, epsilon, request);
      if (!stored) store.add({ study, epsilon, request, message, time: Date.now() } satisfies Entry);
    } catch (error) {
      transaction.abort();
      throw error;
    }
    await done;
    return stored?.message ?? message;
  }

  /** The study has the report: its bytes are forgotten, the entry stays. */
  async confirm(study: string): Promise<void> {
    const transaction = this.#database.transaction(STORE, "readwrite", { durability: "strict" });
    const done = finished(transaction);
    const store = transaction.objectStore(STORE);
    const entry: Entry | undefined = await result(store.get(study));
    if (entry) store.put({ ...entry, message: null });
    await done;
  }

  /** All reports of this device. */
  async entries(): Promise<Entry[]> {
    return result(this.#database.transaction(STORE).objectStore(STORE).getAll());
  }

  /** The sum of ε over all reports, rounded up. */
  async spent(): Promise<number> {
    const total = (await this.entries()).reduce((sum, entry) => sum + units(entry.epsilon), 0n);
    const rounded = Number(total) / 2 ** 60;
    return BigInt(rounded * 2 ** 60) < total ? rounded * (1 + 2 ** -52) : rounded;
  }

  #allowed(entries: readonly Entry[], study: string, epsilon: number, request: string): void {
    const stored = entries.find((entry) => entry.study === study);
    if (stored && !stored.message) throw new Refused("reported", `this device has reported to ${study}`);
    if (stored && (stored.request !== request || stored.epsilon !== epsilon)) {
      throw new Refused("changed", `${study} asks for something else than this device's report answers`);
    }
    const spent = entries.reduce((sum, entry) => sum + units(entry.epsilon), 0n);
    if (!stored && spent + units(epsilon) > units(this.#cap)) {
      throw new Refused("cap", `a report of ε = ${epsilon} to ${study} would exceed this device's cap of ${this.#cap}`);
    }
  }
}
