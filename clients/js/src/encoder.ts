/** The encoder of a scheme, made from its identity: the text that its fingerprint is made of. */

import { blake2b } from "./blake2b.js";
import { messageLength, seal, unseal } from "./envelope.js";
import { NearestVertices, ScalarDP, SparseMatches, type Mechanism } from "./mechanisms.js";
import { Signs } from "./signs.js";
import type { Task } from "./task.js";
import { checked, clipped, padded, rotated, sampled } from "./vectors.js";
import type { Words } from "./words.js";

interface Transform {
  readonly size: number;
  forward(x: Float32Array, task: Task): Float32Array;
}

const NAMES = ["privunit-index", "sqsgd", "sqsgd-stateless"];
const MOST = 2 ** 24;

function matched(text: string, pattern: RegExp): number[] {
  const found = pattern.exec(text);
  if (!found) throw new Error(`this client does not know how to encode "${text}"`);
  const numbers = found.slice(1).map((text) => Number(text ?? 0)); // zero: an optional part is not there
  if (numbers.some((number) => !Number.isFinite(number))) {
    throw new RangeError(`"${text}" holds a number that is not finite`);
  }
  return numbers;
}

function transform(line: string, dim: number): Transform {
  if (line.startsWith("rotate")) {
    const [rounds, shared, least] = matched(line, /^rotate ([123]) shared=([01])(?: least=(\d+))?$/);
    const size = padded(Math.max(dim, least));
    if (size > MOST) throw new RangeError(`"${line}" pads to more than ${MOST} coordinates`);
    return { size, forward: (x, task) => rotated(x, size, rounds, shared === 1, task) };
  }
  const [size, shared, rescale] = matched(line, /^subsample (\d+) shared=([01]) rescale=([01])$/);
  if (size < 1 || size > dim) throw new RangeError(`"${line}": there are ${dim} coordinates`);
  return { size, forward: (x, task) => sampled(x, size, shared === 1, rescale === 1, task) };
}

function scalar(text: string): ScalarDP {
  const [levels, epsilon] = matched(text, /^scalardp (\d+) ([\d.e+-]+)$/);
  if (levels < 1 || levels > 255 || !(epsilon >= 1e-6 && epsilon <= 1e6)) {
    throw new RangeError(`"${text}" is out of range`);
  }
  return new ScalarDP(levels, epsilon);
}

function mechanism(line: string, dim: number): Mechanism {
  const fits = (condition: boolean) => {
    if (!condition) throw new RangeError(`"${line}" does not fit ${dim} coordinates or is out of range`);
  };
  const payable = (epsilon: number) => epsilon >= 1e-6 && epsilon <= 1e5;
  if (line.startsWith("nearest")) {
    const [count, vertices, epsilon] = matched(line, /^nearest (\d+) of (\d+) vertices ([\d.e+-]+)$/);
    fits(vertices === 2 * dim && count >= 1 && count <= dim && payable(epsilon));
    return new NearestVertices(dim, count, epsilon);
  }
  const norm = /\((scalardp [^()]*|coin)\)$/.exec(line)?.[1] ?? "";
  if (line.startsWith("sparse")) {
    const [size, near, count, threshold, epsilon] = matched(line, /^sparse (\d+) (\d+) (\d+) (\d+) ([\d.e+-]+) \(/);
    const hits = Math.min(near, count);
    fits(size === dim && near >= 1 && near <= dim && count >= 1 && count <= Math.min(dim, 4096));
    fits(threshold >= 1 && threshold <= hits && payable(epsilon));
    return new SparseMatches(dim, near, count, threshold, epsilon, norm === "coin" ? null : scalar(norm));
  }
  const [reach, size, threshold, epsilon] = matched(
    line,
    /^direction ([\d.e+-]+) \(privquant (\d+) 2 (\d+) boundary ([\d.e+-]+)\) \(/,
  );
  fits(size === dim && threshold >= 1 && threshold <= dim && payable(epsilon) && reach > 0 && reach <= 20);
  return new Signs(dim, threshold, epsilon, reach, scalar(norm));
}

/** An encoder for vectors of one length. */
export class Encoder {
  readonly name: string;
  readonly dim: number;
  readonly epsilon: number;
  readonly bytes: number;
  readonly fingerprint: Uint8Array;
  readonly #transforms: Transform[] = [];
  readonly #mechanism: Mechanism;

  constructor(readonly identity: string) {
    const lines = identity.split("\n");
    const [, name, dim] = /^([\w-]+) (\d+)$/.exec(lines[0]) ?? [];
    if (!NAMES.includes(name)) throw new Error(`unknown scheme "${lines[0]}"; this client knows ${NAMES.join(", ")}`);
    this.name = name;
    this.dim = Number(dim);
    if (this.dim < 1 || this.dim > MOST) throw new RangeError(`dim = ${dim} must be from 1 to ${MOST}`);
    let size = this.dim;
    for (const line of lines.slice(1, -1)) {
      this.#transforms.push(transform(line, size));
      size = this.#transforms[this.#transforms.length - 1].size;
    }
    this.#mechanism = mechanism(lines[lines.length - 1], size);
    this.epsilon = this.#mechanism.epsilon;
    this.bytes = messageLength(this.#mechanism.layout);
    this.fingerprint = blake2b(new TextEncoder().encode(identity), 4, "sqsgd scheme");
  }

  encode(x: ArrayLike<number>, task: Task, words: Words): Uint8Array {
    this.#check(task);
    let y = clipped(checked(x, this.dim), task.clip);
    for (const each of this.#transforms) y = each.forward(y, task);
    const columns = this.#mechanism.randomize(y, task.bound, words);
    return seal(this.fingerprint, task, this.#mechanism.layout, columns);
  }

  open(message: Uint8Array, task: Task): number[][] {
    this.#check(task);
    return unseal(this.fingerprint, task, this.#mechanism.layout, message);
  }

  #check(task: Task): void {
    if (task.dim !== this.dim) {
      throw new RangeError(`task.dim = ${task.dim}, but this scheme is for ${this.dim} numbers`);
    }
  }
}
