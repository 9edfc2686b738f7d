/** Public arithmetic on float32 vectors, rounded as docs/encoder.md specifies. */

import { publicBytes, type Task } from "./task.js";

const LARGEST = Math.fround(1e13);

/** A copy in float32; refuses NaN, infinity and magnitudes beyond 1e13. */
export function checked(x: ArrayLike<number>, dim: number): Float32Array {
  if (x.length !== dim) throw new RangeError(`x has ${x.length} numbers; it must have ${dim}`);
  const y = Float32Array.from(x);
  const bad = y.findIndex((value) => !(Math.abs(value) <= LARGEST));
  if (bad >= 0) throw new RangeError(`x[${bad}] = ${x[bad]} must be finite and within ±1e13`);
  return y;
}

/** The Euclidean norm in float64: 64 interleaved sums, added in order. */
export function norm(x: Float32Array): number {
  const sums = new Float64Array(64);
  for (let i = 0; i < x.length; i++) sums[i & 63] += x[i] * x[i];
  let total = 0;
  for (let i = 0; i < 64; i++) total += sums[i];
  return Math.sqrt(total);
}

/** x, scaled down to the radius if it is longer. */
export function clipped(x: Float32Array, radius: number | null): Float32Array {
  if (radius === null) return x;
  const length = norm(x);
  const factor = Math.fround(length <= radius ? 1 : radius / length);
  return x.map((value) => value * factor);
}

/** The power of two that a rotation pads to. */
export function padded(dim: number): number {
  return 2 ** Math.ceil(Math.log2(dim));
}

/** One stage of the transform. A function of its own is compiled before the last stage of a page's first report. */
function combine(y: Float32Array, stride: number): void {
  for (let k = 0, half = y.length >> 1, low = stride - 1; k < half; k++) {
    const i = 2 * k - (k & low), j = i + stride; // i runs through the indices without this bit
    const a = y[i], b = y[j];
    y[i] = a + b;
    y[j] = a - b;
  }
}

/** Signs, then Walsh-Hadamard over the strides 1, 2, 4, ...; `rounds` times, padded with zeros to `size`. */
export function rotated(x: Float32Array, size: number, rounds: number, shared: boolean, task: Task): Float32Array {
  const scale = Math.fround(size ** -0.5);
  const y = new Float32Array(size);
  y.set(x);
  for (let round = 0; round < rounds; round++) {
    const signs = publicBytes(task, `signs ${round}`, shared, Math.ceil(size / 8));
    for (let i = 0; i < size; i++) {
      const value = y[i] * scale;
      y[i] = (signs[i >> 3] >> (i & 7)) & 1 ? -value : value;
    }
    for (let stride = 1; stride < size; stride *= 2) combine(y, stride);
  }
  return y;
}

/** The public subset of `size` of `dim` coordinates, in rising order. */
export function coordinates(dim: number, size: number, shared: boolean, task: Task): Uint32Array {
  const count = Math.min(size, dim - size);
  const chosen = new Uint8Array(dim);
  const uneven = 2 ** 32 % dim;
  let found = 0;
  for (let at = 0, length = 8 * count + 512; found < count; length *= 2) {
    const bytes = publicBytes(task, "coordinates", shared, length);
    const view = new DataView(bytes.buffer, bytes.byteOffset);
    for (; found < count && at + 4 <= length; at += 4) {
      const product = BigInt(view.getUint32(at, true)) * BigInt(dim);
      const place = Number(product >> 32n);
      if (Number(product & 0xffffffffn) < uneven || chosen[place]) continue;
      chosen[place] = 1;
      found += 1;
    }
  }
  const wanted = count === size ? 1 : 0;
  const result = new Uint32Array(size);
  for (let i = 0, at = 0; i < dim; i++) if (chosen[i] === wanted) result[at++] = i;
  return result;
}

/** The numbers at the public subset, times sqrt(dim / size) where a scheme rescales. */
export function sampled(x: Float32Array, size: number, shared: boolean, rescale: boolean, task: Task): Float32Array {
  if (size === x.length) return x;
  const factor = rescale ? Math.fround(Math.sqrt(x.length / size)) : 1;
  return Float32Array.from(coordinates(x.length, size, shared, task), (place) => x[place] * factor);
}

/**
 * Codes 2 place + sign of the `count` largest magnitudes, in rising order; of equal ones the first.
 *
 * The least magnitude is found byte by byte, so that the number of steps depends on the sizes alone.
 */
export function nearest(x: Float32Array, count: number): Uint32Array {
  const bits = new Uint32Array(x.buffer, x.byteOffset, x.length);
  const sizes = new Uint32Array(x.length);
  for (let i = 0; i < sizes.length; i++) sizes[i] = bits[i] & 0x7fffffff;
  let least = 0, missing = count;
  for (let shift = 24; shift >= 0; shift -= 8) {
    const tally = new Uint32Array(256);
    for (let i = 0; i < sizes.length; i++) {
      const high = sizes[i] >>> shift;
      tally[high & 255] += +(high >>> 8 === least);
    }
    let digit = 0, above = 0, taken = 0;
    for (let value = 255; value >= 0; value--) {
      const here = +(taken < missing); // the digit is the first value with which enough are taken
      above = here ? taken : above;
      digit = here ? value : digit;
      taken += tally[value];
    }
    missing -= above;
    least = least * 256 + digit;
  }
  let ties = count;
  for (let i = 0; i < sizes.length; i++) ties -= +(sizes[i] > least);
  const codes = new Uint32Array(count + 1);
  for (let i = 0, at = 0; i < sizes.length; i++) {
    const equal = +(sizes[i] === least);
    codes[at] = 2 * i + +(bits[i] > 0x80000000);
    at += +(sizes[i] > least) | (equal & +(ties > 0));
    ties -= equal;
  }
  return codes.slice(0, count);
}
