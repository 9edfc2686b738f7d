/** Blind tokens: the issuer signs them and cannot recognise them. RFC 9474 and RFC 9578, type 2. */

import { bytesOf, fromBase64url, base64url, joined, numberOf, random, sha, unhex, type Bytes } from "./bytes.js";

const TYPE = [0, 2], SIZE = 256, SALT = 48, EXPONENT = 65537;
// SubjectPublicKeyInfo of RFC 9578, section 8.2.2, up to the modulus; then the exponent.
const FRONT = unhex(
  "30820152303d06092a864886f70d01010a3030a00d300b0609608648016503040202a11a301806092a864886f70d010108" +
    "300b0609608648016503040202a2030201300382010f003082010a0282010100",
);
const END = unhex("0203010001");
export const SIGNATURE_BYTES = SIZE;

/** The secrets of one token. */
export interface Blind {
  readonly nonce: Bytes;
  readonly salt: Bytes;
  readonly r: bigint;
}

function power(base: bigint, exponent: number, modulus: bigint): bigint {
  let found = 1n;
  for (let bit = 31 - Math.clz32(exponent); bit >= 0; bit--) {
    found = (found * found) % modulus;
    if ((exponent >> bit) & 1) found = (found * base) % modulus;
  }
  return found;
}

/** 1 / number; 0 if there is none. */
function inverse(number: bigint, modulus: bigint): bigint {
  let [a, b, x, y] = [number, modulus, 1n, 0n];
  while (b > 0n) [a, b, x, y] = [b, a % b, y, x - (a / b) * y];
  return a === 1n ? ((x % modulus) + modulus) % modulus : 0n;
}

/** EMSA-PSS (RFC 8017, section 9.1.1) with SHA-384, for a modulus of 2,048 bits. */
async function encoded(message: Bytes, salt: Bytes): Promise<Bytes> {
  const seed = await sha(384, new Uint8Array(8), await sha(384, message), salt);
  const block = joined(new Uint8Array(SIZE - seed.length - SALT - 2), [1], salt);
  for (let start = 0; start < block.length; start += seed.length) {
    const mask = await sha(384, seed, bytesOf(start / seed.length, 4));
    for (let i = start; i < Math.min(start + seed.length, block.length); i++) block[i] ^= mask[i - start];
  }
  block[0] &= 127;
  return joined(block, seed, [0xbc]);
}

/** The public key of a study's tokens: RSA of 2,048 bits. */
export class TokenKey {
  private constructor(readonly id: Bytes, readonly modulus: bigint) {}

  /** Throws unless it is a key of this kind, in base64url. */
  static async of(text: string): Promise<TokenKey> {
    const der = fromBase64url(text), modulus = der.subarray(FRONT.length, FRONT.length + SIZE);
    if (base64url(joined(FRONT, modulus, END)) !== text || !(modulus[0] & 128)) {
      throw new RangeError("token_key is not an RSA-PSS key of 2,048 bits, SHA-384 and a salt of 48 bytes");
    }
    return new TokenKey(await sha(256, der), numberOf(modulus));
  }

  /** New secrets; r is uniform among the numbers that have an inverse. */
  draw(): Blind {
    for (;;) {
      const r = numberOf(random(SIZE));
      if (r < this.modulus && inverse(r, this.modulus)) return { nonce: random(32), salt: random(SALT), r };
    }
  }

  /** What is signed. */
  async input(study: string, nonce: Bytes): Promise<Bytes> {
    const issuer = "study.invalid";
    const challenge = await sha(256, TYPE, [0, issuer.length], issuer, [32], unhex(study), [0, 0]);
    return joined(TYPE, nonce, challenge, this.id);
  }

  /** What the issuer is asked to sign: a uniform number to it, whatever the token. */
  async request(study: string, { nonce, salt, r }: Blind): Promise<Bytes> {
    const message = numberOf(await encoded(await this.input(study, nonce), salt));
    const blinded = (message * power(r, EXPONENT, this.modulus)) % this.modulus;
    return joined(TYPE, this.id.subarray(-1), bytesOf(blinded, SIZE));
  }

  /** The token, verified; throws if the issuer signed with another key. */
  async token(study: string, { nonce, r }: Blind, answer: Bytes): Promise<Bytes> {
    const signature = bytesOf((numberOf(answer) * inverse(r, this.modulus)) % this.modulus, SIZE);
    const input = await this.input(study, nonce), pss = { name: "RSA-PSS", hash: "SHA-384" };
    const key = { kty: "RSA", n: base64url(bytesOf(this.modulus, SIZE)), e: "AQAB" };
    const made = await crypto.subtle.importKey("jwk", key, pss, false, ["verify"]);
    if (!(await crypto.subtle.verify({ name: "RSA-PSS", saltLength: SALT }, made, signature, input))) {
      throw new RangeError("the issuer does not sign with the study's key");
    }
    return joined(input, signature);
  }
}
