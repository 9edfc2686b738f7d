/** BLAKE2b without a key (RFC 7693), for public values only. */

const START = [
  0x6a09e667f3bcc908n, 0xbb67ae8584caa73bn, 0x3c6ef372fe94f82bn, 0xa54ff53a5f1d36f1n,
  0x510e527fade682d1n, 0x9b05688c2b3e6c1fn, 0x1f83d9abfb41bd6bn, 0x5be0cd19137e2179n,
];
const ORDER = [
  "0123456789abcdef",
  "ea489fd61c02b753",
  "b8c052fdae367194",
  "7931dcbe265a40f8",
  "905724afe1bc683d",
  "2c6a0b834d75fe19",
  "c51fed4a0763928b",
  "db7ec13950f4862a",
  "6fe9b308c2d714a5",
  "a2847615fb9e3cd0",
].map((row) => [...row].map((digit) => parseInt(digit, 16)));

const wrap = (value: bigint) => BigInt.asUintN(64, value);
const turn = (value: bigint, bits: bigint) => wrap((value >> bits) | (value << (64n - bits)));

function mix(v: bigint[], a: number, b: number, c: number, d: number, x: bigint, y: bigint): void {
  v[a] = wrap(v[a] + v[b] + x);
  v[d] = turn(v[d] ^ v[a], 32n);
  v[c] = wrap(v[c] + v[d]);
  v[b] = turn(v[b] ^ v[c], 24n);
  v[a] = wrap(v[a] + v[b] + y);
  v[d] = turn(v[d] ^ v[a], 16n);
  v[c] = wrap(v[c] + v[d]);
  v[b] = turn(v[b] ^ v[c], 63n);
}

/** The digest of `size` bytes with a personalisation of up to 16 ASCII characters. */
export function blake2b(message: Uint8Array, size: number, person: string): Uint8Array {
  const block = new DataView(new ArrayBuffer(128));
  [...person].forEach((letter, i) => block.setUint8(i, letter.charCodeAt(0)));
  const state = [...START];
  state[0] ^= 0x01010000n ^ BigInt(size);
  state[6] ^= block.getBigUint64(0, true);
  state[7] ^= block.getBigUint64(8, true);
  for (let start = 0; start === 0 || start < message.length; start += 128) {
    const part = message.subarray(start, start + 128);
    new Uint8Array(block.buffer).fill(0).set(part);
    const words = Array.from({ length: 16 }, (_, i) => block.getBigUint64(8 * i, true));
    const v = [...state, ...START];
    v[12] ^= BigInt(start + part.length);
    if (start + 128 >= message.length) v[14] = wrap(~v[14]);
    for (let round = 0; round < 12; round++) {
      const at = ORDER[round % 10];
      for (let i = 0; i < 4; i++) mix(v, i, 4 + i, 8 + i, 12 + i, words[at[2 * i]], words[at[2 * i + 1]]);
      for (let i = 0; i < 4; i++) {
        const [b, c, d] = [4 + ((i + 1) % 4), 8 + ((i + 2) % 4), 12 + ((i + 3) % 4)];
        mix(v, i, b, c, d, words[at[8 + 2 * i]], words[at[9 + 2 * i]]);
      }
    }
    for (let i = 0; i < 8; i++) state[i] ^= v[i] ^ v[8 + i];
  }
  const digest = new DataView(new ArrayBuffer(64));
  state.forEach((word, i) => digest.setBigUint64(8 * i, word, true));
  return new Uint8Array(digest.buffer, 0, size);
}
