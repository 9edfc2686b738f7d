/** Draws without rounding: whole numbers and rigorous bounds of e^ε decide, never a float. */

import type { Words } from "./words.js";

/** The number as m 2^e, exactly. */
function dyadic(value: number): [bigint, number] {
  let exponent = 0;
  while (!Number.isInteger(value)) {
    value *= 2;
    exponent -= 1;
  }
  return [BigInt(value), exponent];
}

/** Bounds of e^ε 2^bits for ε > 0. */
export function exponential(epsilon: number, bits: number): [bigint, bigint] {
  const [mantissa, exponent] = dyadic(epsilon);
  const halvings = Math.max(0, Math.ceil(Math.log2(epsilon)) + 8);
  const places = Math.max(bits + Math.ceil(3 * epsilon) + 2 * halvings + 32, halvings - exponent);
  const scale = BigInt(places);
  const small = mantissa << BigInt(places + exponent - halvings); // ε / 2^halvings, exactly
  let [term, low, terms] = [1n << scale, 0n, 0n];
  while (term > 0n) {
    low += term;
    terms += 1n;
    term = (term * small >> scale) / terms;
  }
  let high = low + 4n * terms + 4n; // each term was rounded down, by less than two units
  for (let i = 0; i < halvings; i++) {
    low = low * low >> scale;
    high = (high * high >> scale) + 1n;
  }
  const surplus = BigInt(places - bits);
  return [low >> surplus, (high >> surplus) + 1n];
}

/**
 * A law on 0..top with P(X <= v) = (below[v] + above[v] e^ε) / (below[top] + above[top] e^ε), in whole numbers.
 *
 * `draw` takes the least v with U < P(X <= v), where U is read from the words, first word first, until every
 * continuation gives the same v.
 */
export class ExactLaw {
  readonly #bounds = new Map<number, [bigint, bigint]>();

  constructor(
    private readonly below: readonly bigint[],
    private readonly above: readonly bigint[],
    private readonly epsilon: number,
  ) {}

  /** The law whose value 0 has `low` and whose value 1 has `high` times e^ε. */
  static coin(low: number, high: number, epsilon: number): ExactLaw {
    return new ExactLaw([BigInt(low), BigInt(low)], [0n, BigInt(high)], epsilon);
  }

  /** From the numbers of outcomes of each value; those from `first` on weigh e^ε. */
  static of(counts: readonly bigint[], first: number, epsilon: number): ExactLaw {
    let [low, high] = [0n, 0n];
    const below: bigint[] = [], above: bigint[] = [];
    counts.forEach((count, value) => {
      if (value < first) low += count;
      else high += count;
      below.push(low);
      above.push(high);
    });
    return new ExactLaw(below, above, epsilon);
  }

  draw(words: Words): number {
    for (let word = words.word(), bits = 64; ; word = word << 64n | words.word(), bits += 64) {
      const found = this.#search(word, bits);
      if (found >= 0) return found;
    }
  }

  /** The value for all U in [word, word + 1) / 2^bits, or -1 if they have several. */
  #search(word: bigint, bits: number): number {
    let [least, most] = [0, this.below.length - 1];
    while (least < most) {
      const middle = (least + most) >> 1;
      if (this.#compare(word + 1n, bits, middle) <= 0) most = middle;
      else if (this.#compare(word, bits, middle) >= 0) least = middle + 1;
      else return -1;
    }
    return least;
  }

  /** The sign of number / 2^bits - P(X <= value): that of p + q e^ε with whole numbers p and q. */
  #compare(number: bigint, bits: number, value: number): number {
    const top = this.below.length - 1, shift = BigInt(bits);
    const p = number * this.below[top] - (this.below[value] << shift);
    const q = number * this.above[top] - (this.above[value] << shift);
    if (p >= 0n && q >= 0n) return p + q > 0n ? 1 : 0;
    if (p <= 0n && q <= 0n) return -1;
    for (let places = 256; ; places *= 2) {
      const [low, high] = this.#power(places).map((bound) => (p << BigInt(places)) + q * bound);
      if (low > 0n && high > 0n) return 1;
      if (low < 0n && high < 0n) return -1;
    }
  }

  #power(places: number): [bigint, bigint] {
    let found = this.#bounds.get(places);
    if (!found) this.#bounds.set(places, (found = exponential(this.epsilon, places)));
    return found;
  }
}

/** C(n, 0), C(n, 1), ..., C(n, most). */
export function binomials(n: number, most: number): bigint[] {
  const row = [1n];
  for (let k = 1; k <= most; k++) row.push(row[k - 1] * BigInt(n - k + 1) / BigInt(k));
  return row;
}
