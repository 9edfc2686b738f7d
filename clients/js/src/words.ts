/** Private randomness: 64-bit words from the platform's cryptographic generator, and exact draws from them. */

/** Where private words come from. Only `SecureWords` exists outside the tests. */
export interface Words {
  word(): bigint;
  words(count: number): BigUint64Array;
}

const POOL = 64;
const MOST = 8192; // words that one call of getRandomValues may fill

/** Words of `crypto.getRandomValues`, each handed out once. There is no seed to set. */
export class SecureWords implements Words {
  #pool: BigUint64Array = new BigUint64Array(0);
  #used = 0;

  word(): bigint {
    if (this.#used === this.#pool.length) {
      this.#pool = this.words(POOL);
      this.#used = 0;
    }
    const found = this.#pool[this.#used];
    this.#pool[this.#used++] = 0n;
    return found;
  }

  words(count: number): BigUint64Array {
    const found = new BigUint64Array(count);
    for (let start = 0; start < count; start += MOST) {
      crypto.getRandomValues(found.subarray(start, Math.min(start + MOST, count)));
    }
    return found;
  }
}

/** A uniform whole number below `bound`, by rejection. */
export function below(bound: number, words: Words): number {
  const size = BigInt(bound);
  const limit = 2n ** 64n - (2n ** 64n % size);
  let word = words.word();
  while (word >= limit) word = words.word();
  return Number(word % size);
}

/** A multiple of 2^-53 in [0, 1). It decides only what happens before the private step. */
export function uniform(words: Words): number {
  return Number(words.word() >> 11n) * 2 ** -53;
}
