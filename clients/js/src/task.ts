/** The task: what a study asks of one device. All of it is public. */

import { blake2b } from "./blake2b.js";
import { keystream } from "./keystream.js";

export interface Task {
  readonly round: number;
  /** 0 where the randomness is that of the round. */
  readonly client: bigint;
  readonly seed: bigint;
  readonly dim: number;
  /** The largest norm that a report can carry. */
  readonly bound: number;
  /** The radius that vectors are clipped to first; none if null. */
  readonly clip: number | null;
}

/** A task as JSON has it: numbers beyond 2^53 are strings of decimal digits. */
export interface TaskDescription {
  round: number;
  client: number | string;
  seed: number | string;
  dim: number;
  bound: number;
  clip?: number | null;
}

function whole(name: string, value: unknown, most: bigint): bigint {
  const text = typeof value === "bigint" ? value.toString() : value;
  const digits = typeof text === "string" && /^\d{1,20}$/.test(text);
  const fits = digits || (typeof text === "number" && Number.isSafeInteger(text));
  const number = fits ? BigInt(text as number | string) : -1n;
  if (number < 0n || number > most) {
    throw new RangeError(`${name} = ${String(value)} must be a whole number from 0 to ${most}`);
  }
  return number;
}

function size(name: string, value: unknown): number {
  if (typeof value !== "number" || !(value >= 1e-9 && value <= 1e30)) {
    throw new RangeError(`${name} = ${String(value)} must be a number from 1e-9 to 1e30`);
  }
  return value;
}

/** The checked task. */
export function makeTask(given: TaskDescription | Task): Task {
  const dim = Number(whole("dim", given.dim, 2n ** 32n - 1n));
  if (dim < 1) throw new RangeError("dim = 0 must be at least 1");
  return Object.freeze({
    round: Number(whole("round", given.round, 2n ** 32n - 1n)),
    client: whole("client", given.client, 2n ** 64n - 2n),
    seed: whole("seed", given.seed, 2n ** 64n - 1n),
    dim,
    bound: size("bound", given.bound),
    clip: given.clip === undefined || given.clip === null ? null : size("clip", given.clip),
  });
}

/** The task as the bytes that a report's checksum covers. */
export function binding(task: Task): Uint8Array {
  const view = new DataView(new ArrayBuffer(44));
  view.setUint32(0, task.round, true);
  view.setBigUint64(4, task.client, true);
  view.setBigUint64(12, task.seed, true);
  view.setBigUint64(20, BigInt(task.dim), true);
  view.setFloat64(28, task.bound, true);
  view.setFloat64(36, task.clip ?? 0, true);
  return new Uint8Array(view.buffer);
}

/** The first bytes of the task's public stream for a purpose; `shared`: the stream of all clients. */
export function publicBytes(task: Task, purpose: string, shared: boolean, length: number): Uint8Array {
  const message = new Uint8Array(16 + purpose.length);
  const view = new DataView(message.buffer);
  view.setBigUint64(0, task.seed, true);
  view.setBigUint64(8, BigInt(task.round), true);
  message.set(new TextEncoder().encode(purpose), 16);
  return keystream(blake2b(message, 32, "sqsgd public"), shared ? 2n ** 64n - 1n : task.client, length);
}
