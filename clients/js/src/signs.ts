/** The signs of all coordinates, privatised to an exact number of matches, and the norm as a symbol. */

import { bitColumn, type Column } from "./columns.js";
import { binomials, ExactLaw } from "./exact.js";
import { sumUp, type Mechanism, type ScalarDP } from "./mechanisms.js";
import { norm } from "./vectors.js";
import type { Words } from "./words.js";

const MOST = 1 << 17;

/** Half to even, as the specification rounds. */
function rounded(value: number): number {
  const floor = Math.floor(value), rest = value - floor;
  return floor + +(rest > 0.5 || (rest === 0.5 && floor % 2 === 1));
}

const up = (bytes: number) => (bytes + 7) & ~7;

export class Signs implements Mechanism {
  readonly epsilon: number;
  readonly layout: readonly Column[];
  readonly #matches: ExactLaw;

  constructor(
    readonly dim: number,
    threshold: number,
    epsilon: number,
    readonly reach: number,
    readonly symbol: ScalarDP,
  ) {
    if (dim > MOST) throw new RangeError(`signs of ${dim} coordinates: this client sends at most ${MOST}`);
    this.#matches = ExactLaw.of(binomials(dim, dim), threshold, epsilon);
    this.epsilon = sumUp(epsilon, symbol.epsilon);
    this.layout = [bitColumn(dim), symbol.column];
  }

  randomize(x: Float32Array, bound: number, words: Words): ArrayLike<number>[] {
    const size = norm(x), tiny = size < 1e-6 * bound;
    const range = tiny ? 1 : (this.reach * size) / Math.sqrt(this.dim);
    const wanted = this.#matches.draw(words);
    const noise = this.#noise(words);
    const codes = this.#rounded(tiny ? new Float32Array(this.dim) : x, Math.fround(1 / (2 * range)), noise);
    const out = this.#scrambled(codes, wanted, noise.scrambling);
    let matches = 0;
    for (let i = 0; i < this.dim; i++) matches += +(out[i] === codes[i]);
    matches = this.#adjusted(codes, out, matches, wanted, noise.tries);
    while (matches !== wanted) {
      const gap = Math.abs(wanted - matches);
      const candidates = Math.max(matches > wanted ? wanted : this.dim - wanted, 1);
      const tries = Math.floor((gap * this.dim) / candidates) + Math.floor(gap / 4) + 32;
      matches = this.#adjusted(codes, out, matches, wanted, words.words(Math.min(tries, MOST)));
    }
    return [out, [this.symbol.privatize(tiny ? 0 : size / bound, words)]];
  }

  /** One run of words, cut into the noise of each step. */
  #noise(words: Words) {
    const rounding = up(this.dim), spare = rounding + up(2 * this.dim);
    const tries = spare + 32 * Math.ceil(this.dim / 256);
    const all = words.words(tries / 8 + 64 + 4 * Math.floor(Math.sqrt(this.dim)));
    const view = new DataView(new ArrayBuffer(8 * all.length)); // little-endian, whatever the machine
    all.forEach((word, i) => view.setBigUint64(8 * i, word, true));
    return {
      scrambling: (i: number) => view.getUint8(i),
      rounding: (i: number) => view.getUint16(rounding + 2 * i, true),
      spare: (i: number) => view.getUint32(spare + 4 * i, true),
      tries: all.subarray(tries / 8),
    };
  }

  /** The sign of each coordinate; near zero at random, with the coordinate as the mean. */
  #rounded(x: Float32Array, factor: number, noise: { rounding(i: number): number; spare(i: number): number }) {
    const codes = new Uint8Array(this.dim);
    for (let i = 0; i < this.dim; i++) {
      const t = Math.min(Math.max(Math.fround(Math.fround(x[i] * factor) + 0.5), 0), 1);
      const scaled = t * 65536, fixed = Math.floor(scaled);
      const total = fixed + noise.rounding(i);
      codes[i] = total >> 16;
      if ((total & 65535) === 65535) {
        const spare = noise.spare(8 * (i >> 8) + (i & 7));
        codes[i] += +(spare < (scaled - fixed) * 2 ** 32);
      }
    }
    return codes;
  }

  /** Each code is kept or replaced at random, so that about the wanted number of them match. */
  #scrambled(codes: Uint8Array, wanted: number, noise: (i: number) => number): Uint8Array {
    const share = Math.max(0, (wanted * 2) / this.dim - 1);
    const keep = 16 * (this.dim - wanted) < this.dim ? 256 : 2 * Math.min(rounded(share * 128), 127);
    return codes.map((code, i) => (noise(i) < keep ? code : noise(i) & 1));
  }

  /** Flip uniformly drawn codes until `wanted` match; returns how many do when the words end. */
  #adjusted(codes: Uint8Array, out: Uint8Array, matches: number, wanted: number, words: BigUint64Array): number {
    const uneven = 2 ** 32 % this.dim;
    for (const word of words) {
      const product = Number(word >> 32n) * this.dim; // below 2^49
      const i = Math.floor(product / 2 ** 32);
      const even = +(product % 2 ** 32 >= uneven), match = +(out[i] === codes[i]);
      const rise = even & (1 - match) & +(matches < wanted), fall = even & match & +(matches > wanted);
      out[i] ^= rise | fall;
      matches += rise - fall;
    }
    return matches;
  }
}
