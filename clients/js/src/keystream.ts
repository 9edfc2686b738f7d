/** AES-256 in counter mode, for the public streams. Its tables leak the key's timing, so never use it for noise. */

const SBOX = new Uint8Array(256);
const MIXED = new Uint32Array(256); // (2 s, s, s, 3 s) for the S-box's value s

(function fillTables() {
  const double = (value: number) => ((value << 1) ^ (value & 128 ? 0x11b : 0)) & 255;
  for (let i = 0, value = 1, inverse = 1; i < 255; i++) {
    // value runs through all powers of 3, inverse through those of its inverse
    const spread = inverse * 0x101;
    const s = ((spread ^ (spread >> 4) ^ (spread >> 5) ^ (spread >> 6) ^ (spread >> 7)) & 255) ^ 99;
    SBOX[value] = s;
    value ^= double(value);
    inverse ^= inverse << 1;
    inverse ^= inverse << 2;
    inverse ^= inverse << 4;
    inverse = (inverse ^ (inverse & 128 ? 9 : 0)) & 255;
  }
  SBOX[0] = 99;
  for (let i = 0; i < 256; i++) {
    const s = SBOX[i];
    MIXED[i] = (double(s) << 24) | (s << 16) | (s << 8) | (double(s) ^ s);
  }
})();

const byte = (word: number, which: number) => (word >>> (24 - 8 * which)) & 255;
const substituted = (word: number) =>
  (SBOX[byte(word, 0)] << 24) | (SBOX[byte(word, 1)] << 16) | (SBOX[byte(word, 2)] << 8) | SBOX[byte(word, 3)];
const turned = (word: number, bits: number) => (word >>> bits) | (word << (32 - bits));

function schedule(key: Uint8Array): Int32Array {
  const words = new Int32Array(60);
  const view = new DataView(key.buffer, key.byteOffset, 32);
  for (let i = 0; i < 8; i++) words[i] = view.getInt32(4 * i);
  for (let i = 8, constant = 1; i < 60; i++) {
    let last = words[i - 1];
    if (i % 8 === 0) {
      last = substituted(turned(last, 24)) ^ (constant << 24);
      constant <<= 1;
    } else if (i % 8 === 4) last = substituted(last);
    words[i] = words[i - 8] ^ last;
  }
  return words;
}

/** The first `length` bytes of the keystream whose first counter block is 2. */
export function keystream(key: Uint8Array, length: number): Uint8Array {
  const keys = schedule(key);
  const blocks = Math.ceil(length / 16);
  const stream = new DataView(new ArrayBuffer(16 * blocks));
  for (let block = 0; block < blocks; block++) {
    let state = [keys[0], keys[1], keys[2], keys[3] ^ (block + 2)];
    for (let round = 1; round < 14; round++) {
      state = state.map(
        (_, i) =>
          MIXED[byte(state[i], 0)] ^
          turned(MIXED[byte(state[(i + 1) % 4], 1)], 8) ^
          turned(MIXED[byte(state[(i + 2) % 4], 2)], 16) ^
          turned(MIXED[byte(state[(i + 3) % 4], 3)], 24) ^
          keys[4 * round + i],
      );
    }
    for (let i = 0; i < 4; i++) {
      const last =
        (SBOX[byte(state[i], 0)] << 24) |
        (SBOX[byte(state[(i + 1) % 4], 1)] << 16) |
        (SBOX[byte(state[(i + 2) % 4], 2)] << 8) |
        SBOX[byte(state[(i + 3) % 4], 3)];
      stream.setInt32(16 * block + 4 * i, last ^ keys[56 + i]);
    }
  }
  return new Uint8Array(stream.buffer, 0, length);
}
