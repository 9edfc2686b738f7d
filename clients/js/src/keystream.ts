/** AES-256 in counter mode, for the public streams. Its tables leak the key's timing, so never use it for noise. */

const SBOX = new Uint8Array(256);
const [FIRST, SECOND, THIRD, FOURTH] = Array.from({ length: 4 }, () => new Int32Array(256));

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
    FIRST[i] = (double(s) << 24) | (s << 16) | (s << 8) | (double(s) ^ s);
    SECOND[i] = turned(FIRST[i], 8);
    THIRD[i] = turned(FIRST[i], 16);
    FOURTH[i] = turned(FIRST[i], 24);
  }
})();

/** The S-box on byte 0 of a, 1 of b, 2 of c and 3 of d. */
function shifted(a: number, b: number, c: number, d: number): number {
  return (SBOX[a >>> 24] << 24) | (SBOX[(b >>> 16) & 255] << 16) | (SBOX[(c >>> 8) & 255] << 8) | SBOX[d & 255];
}

/** The same, and then one column mixed. */
function mixed(a: number, b: number, c: number, d: number): number {
  return FIRST[a >>> 24] ^ SECOND[(b >>> 16) & 255] ^ THIRD[(c >>> 8) & 255] ^ FOURTH[d & 255];
}

const substituted = (word: number) => shifted(word, word, word, word);

function turned(word: number, bits: number): number {
  return (word >>> bits) | (word << (32 - bits));
}

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

/** The first `length` bytes of the keystream whose first counter block is a client's number and zero, big-endian. */
export function keystream(key: Uint8Array, client: bigint, length: number): Uint8Array {
  const keys = schedule(key);
  const high = Number(client >> 32n), low = Number(client & 0xffffffffn);
  const blocks = Math.ceil(length / 16);
  const stream = new DataView(new ArrayBuffer(16 * blocks));
  for (let block = 0; block < blocks; block++) {
    let a = keys[0] ^ high, b = keys[1] ^ low, c = keys[2], d = keys[3] ^ block;
    for (let at = 4; at < 56; at += 4) {
      const e = mixed(a, b, c, d) ^ keys[at], f = mixed(b, c, d, a) ^ keys[at + 1];
      const g = mixed(c, d, a, b) ^ keys[at + 2], h = mixed(d, a, b, c) ^ keys[at + 3];
      (a = e), (b = f), (c = g), (d = h);
    }
    const start = 16 * block;
    stream.setInt32(start, shifted(a, b, c, d) ^ keys[56]);
    stream.setInt32(start + 4, shifted(b, c, d, a) ^ keys[57]);
    stream.setInt32(start + 8, shifted(c, d, a, b) ^ keys[58]);
    stream.setInt32(start + 12, shifted(d, a, b, c) ^ keys[59]);
  }
  return new Uint8Array(stream.buffer, 0, length);
}
