/** The private steps that send a few signed coordinates, and the norm as a symbol. */

import { oneCode, signedSubset, type Column } from "./columns.js";
import { binomials, ExactLaw } from "./exact.js";
import { nearest, norm } from "./vectors.js";
import { below, SecureWords, uniform, type Words } from "./words.js";

/** The only private step: a vector in, columns of whole numbers out. */
export interface Mechanism {
  readonly dim: number;
  readonly epsilon: number;
  readonly layout: readonly Column[];
  randomize(x: Float32Array, bound: number, words: Words): ArrayLike<number>[];
}

/** a + b, rounded up: a stated ε is never below the spent one. */
export function sumUp(a: number, b: number): number {
  const sum = a + b, rest = sum - a;
  const lost = a - (sum - rest) + (b - rest);
  return lost > 0 ? sum * (1 + 2 ** -52) : sum;
}

/** 1 if a vector with this share of the bound is to be reversed. */
function reversed(share: number, words: Words): number {
  return +(uniform(words) >= (1 + share) / 2);
}

/** The index of the rank-th code that is not among the given ones, which rise. */
function nthOther(codes: Uint32Array, rank: number): number {
  let index = rank;
  for (const code of codes) index += +(code <= index);
  return index;
}

/** One vertex ± e_i; each of the `count` nearest is e^ε times as likely as each other one. */
export class NearestVertices implements Mechanism {
  readonly layout: readonly Column[];
  readonly #isNear: ExactLaw;

  constructor(readonly dim: number, readonly count: number, readonly epsilon: number) {
    this.layout = [oneCode(2 * dim)];
    this.#isNear = ExactLaw.coin(2 * dim - count, count, epsilon);
  }

  randomize(x: Float32Array, bound: number, words: Words): ArrayLike<number>[] {
    const near = nearest(x, this.count);
    const reverse = reversed(Math.min(norm(x) / bound, 1), words);
    const codes = near.map((code) => code ^ reverse);
    const isNear = this.#isNear.draw(words);
    const rank = below([2 * this.dim - this.count, this.count][isNear], words);
    // Both are computed, whichever is sent.
    return [[[nthOther(codes, rank), codes[Math.min(rank, this.count - 1)]][isNear]]];
  }
}

/** A number in [0, 1] as a symbol 0..levels: rounded without bias, then randomised response. */
export class ScalarDP {
  readonly column: Column;
  readonly #stays: ExactLaw;
  readonly #idle = new SecureWords();

  constructor(readonly levels: number, readonly epsilon: number) {
    this.column = oneCode(levels + 1);
    this.#stays = ExactLaw.coin(levels, 1, epsilon);
  }

  privatize(value: number, words: Words): number {
    const position = this.levels * Math.min(Math.max(value, 0), 1);
    const lower = Math.min(Math.floor(position), this.levels - 1);
    const symbol = lower + +(uniform(words) < position - lower);
    const moves = 1 - this.#stays.draw(words);
    const shift = 1 + below(this.levels, [this.#idle, words][moves]); // both cases draw
    return (symbol + moves * shift) % (this.levels + 1);
  }
}

/** `count` signed coordinates, of which at least `threshold` are among the `near` largest with odds e^ε. */
export class SparseMatches implements Mechanism {
  readonly layout: readonly Column[];
  readonly epsilon: number;
  readonly #law: ExactLaw;
  readonly #pairs: [number, number][] = []; // right and wrong signs of each value of the law
  readonly #words: number;

  constructor(
    readonly dim: number,
    readonly near: number,
    readonly count: number,
    threshold: number,
    epsilon: number,
    readonly symbol: ScalarDP | null,
  ) {
    const most = Math.min(near, count);
    const hits = binomials(near, most), misses = binomials(dim - near, Math.min(count, dim - near));
    const counts: bigint[] = [];
    let first = 0;
    for (let right = 0; right <= most; right++) {
      if (right === threshold) first = counts.length;
      let ways = 1n; // C(right + wrong, right)
      for (let wrong = 0; wrong <= most - right; wrong++) {
        const hit = right + wrong;
        if (wrong) ways = ways * BigInt(hit) / BigInt(wrong);
        counts.push(((misses[count - hit] ?? 0n) * hits[hit] * ways) << BigInt(count - hit));
        this.#pairs.push([right, wrong]);
      }
    }
    this.#law = ExactLaw.of(counts, first, epsilon);
    this.epsilon = symbol ? sumUp(epsilon, symbol.epsilon) : epsilon;
    this.layout = symbol ? [signedSubset(count, dim), symbol.column] : [signedSubset(count, dim)];
    const outside = dim - near + 0.5;
    this.#words = Math.ceil(1.25 * (most - dim * Math.log1p(-Math.min(count, dim - near) / outside))) + 32;
  }

  randomize(x: Float32Array, bound: number, words: Words): ArrayLike<number>[] {
    let near = nearest(x, this.near);
    const share = Math.min(norm(x) / bound, 1);
    if (!this.symbol) {
      const reverse = reversed(share, words);
      near = near.map((code) => code ^ reverse);
    }
    const [right, wrong] = this.#pairs[this.#law.draw(words)];
    let codes: Uint32Array | null = null;
    while (!codes) codes = this.#codes(near.slice(), right, wrong, words.words(this.#words));
    return this.symbol ? [codes, [this.symbol.privatize(share, words)]] : [codes];
  }

  /** A uniform code with these numbers of right and wrong signs; null if the words do not suffice. */
  #codes(near: Uint32Array, right: number, wrong: number, words: BigUint64Array): Uint32Array | null {
    const marked = new Uint8Array(this.dim);
    for (const code of near) marked[code >> 1] = 1;
    let used = 0;
    const next = (bound: number): number => {
      const size = BigInt(bound), limit = 2n ** 64n - (2n ** 64n % size);
      while (used < words.length && words[used] >= limit) used++;
      return used < words.length ? Number(words[used++] % size) : -1;
    };
    for (let i = 0; i < Math.min(near.length, this.count); i++) {
      const step = next(near.length - i);
      if (step < 0) return null;
      [near[i], near[i + step]] = [near[i + step], near[i]];
    }
    const outside = new Uint32Array(Math.min(this.count, this.dim - near.length));
    for (let found = 0; found < outside.length; ) {
      const code = next(2 * this.dim);
      if (code < 0) return null;
      if (marked[code >> 1]) continue;
      marked[code >> 1] = 1;
      outside[found++] = code;
    }
    const hits = right + wrong;
    return Uint32Array.from({ length: this.count }, (_, i) =>
      i < right ? near[i] : i < hits ? near[i] ^ 1 : outside[i - hits],
    ).sort();
  }
}
