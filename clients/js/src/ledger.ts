/**
 * What this device has promised, paid and not yet confirmed, in IndexedDB: a record for each study, a cap over all.
 *
 * Each change is on the disk before its promise resolves. The ledger is as durable as the site's storage: whoever
 * clears it clears the record.
 */

import type { Bytes } from "./bytes.js";
import { Refused, type Report } from "./terms.js";

/** This device's part in a study. */
export interface Part {
  readonly study: string;
  readonly url: string;
  /** The study as it was first seen. */
  readonly description: Bytes;
  readonly reports: Report[];
}

function result<T>(request: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

/** ε as a whole number of 2^-60, rounded up, so that sums are exact. */
function units(epsilon: number): bigint {
  return BigInt(Math.ceil(epsilon * 2 ** 60));
}

function paid(parts: readonly Part[]): bigint {
  return parts.flatMap((part) => part.reports).reduce((sum, report) => sum + units(report.epsilon ?? 0), 0n);
}

export class Ledger {
  readonly #database: IDBDatabase;

  private constructor(readonly cap: number, database: IDBDatabase) {
    this.#database = database;
  }

  /** Open the ledger. `cap`: the largest sum of ε over all studies, the same on every visit. */
  static async open(cap: number, name = "sqsgd"): Promise<Ledger> {
    if (!(cap > 0 && cap <= 1e6)) throw new RangeError(`cap = ${cap} must be a number above 0, at most 1e6`);
    if (!globalThis.crypto?.subtle) throw new Refused("browser", "the address must begin with https://");
    const advice = "allow this site to store data, leave the private window, or use another browser";
    const refuse = () => Promise.reject(new Refused("browser", `this browser keeps no record of reports: ${advice}`));
    if (!globalThis.indexedDB) return refuse();
    const database = await new Promise<IDBDatabase>((resolve, reject) => {
      const opening = indexedDB.open(name, 1);
      opening.onupgradeneeded = () => opening.result.createObjectStore("parts", { keyPath: "study" });
      result(opening).then(resolve, reject);
    }).catch(refuse);
    database.onversionchange = () => database.close();
    await globalThis.navigator?.storage?.persist?.().catch(() => false); // ask that it is not evicted
    return new Ledger(cap, database);
  }

  close(): void {
    this.#database.close();
  }

  /** The studies of this device. */
  async parts(): Promise<Part[]> {
    return result(this.#database.transaction("parts").objectStore("parts").getAll());
  }

  /** The sum of ε over all reports, rounded up. */
  async spent(): Promise<number> {
    const total = paid(await this.parts()), rounded = Number(total) / 2 ** 60;
    return BigInt(rounded * 2 ** 60) < total ? rounded * (1 + 2 ** -52) : rounded;
  }

  /** The part in a study as it was stored first: `made`, if there is none yet. */
  begin(made: Part): Promise<Part> {
    return this.#write(made.study, (_, part) => part ?? made);
  }

  /** Change reports; of two tabs, the second sees what the first one stored. */
  async change(study: string, change: (reports: Report[]) => void): Promise<Report[]> {
    return (await this.#write(study, (_, part) => (change(part!.reports), part!))).reports;
  }

  /** Pay for a report, once. Throws `Refused` if the cap does not allow it. */
  async pay(study: string, number: number, epsilon: number): Promise<void> {
    await this.#write(study, (parts, part) => {
      const report = part!.reports[number];
      if (report.epsilon === undefined && paid(parts) + units(epsilon) > units(this.cap)) {
        throw new Refused("cap", `a report of ε = ${epsilon} would exceed this device's cap of ${this.cap}`);
      }
      if (report.state === "waiting") report.epsilon ??= epsilon;
      return part!;
    });
  }

  /** One transaction, on disk before the promise resolves; aborted if the action throws. */
  async #write(study: string, action: (parts: Part[], part: Part | undefined) => Part): Promise<Part> {
    const transaction = this.#database.transaction("parts", "readwrite", { durability: "strict" });
    const done = new Promise<void>((resolve, reject) => {
      transaction.oncomplete = () => resolve();
      transaction.onabort = () => reject(transaction.error ?? new Error("the ledger could not be written"));
    });
    done.catch(() => undefined); // awaited below, unless the action fails first
    try {
      const store = transaction.objectStore("parts"), parts: Part[] = await result(store.getAll());
      const changed = action(parts, parts.find((part) => part.study === study));
      store.put(changed);
      await done;
      return changed;
    } catch (error) {
      if (transaction.error === null) transaction.abort();
      throw error;
    }
  }
}
