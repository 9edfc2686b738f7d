/** Oblivious HTTP (RFC 9458): the relay does not see what is asked, the service not who asks. */

import { ascii, bytesOf, joined, numberOf, type Bytes } from "./bytes.js";

const KEM = [0, 0x20], SUITE = [0, 1, 0, 1]; // X25519; HKDF-SHA256 and AES-128-GCM
const AUTHORITY = "study.invalid"; // the same for everybody
const NONE = new Uint8Array(0);

/** An answer that cannot be read. */
export class MalformedAnswer extends Error {
  override name = "MalformedAnswer";
}

/** Keys of the gateway that the study did not sign, or not for now. */
export class UnsignedKeys extends Error {
  override name = "UnsignedKeys";
}

// ---------------------------------------------------------------- binary HTTP (RFC 9292)

function counted(content: Uint8Array | string): Bytes {
  const bytes = joined(content), size = bytes.length;
  const length = size < 64 ? bytesOf(size, 1) : size < 16384 ? bytesOf(size | 0x4000, 2) : bytesOf(size + 2 ** 31, 4);
  return joined(length, bytes);
}

/** A request of exactly `length` bytes. */
export function packRequest(path: string, body: string | null, length: number): Bytes {
  const control = [body === null ? "GET" : "POST", "https", AUTHORITY, path].map(counted);
  const fields = body === null ? NONE : joined(counted("content-type"), counted("application/json"));
  const packed = joined([0], ...control, counted(fields), counted(body ?? ""), [0]);
  if (packed.length > length) throw new RangeError(`the request has ${packed.length} bytes, more than ${length}`);
  return joined(packed, new Uint8Array(length - packed.length));
}

export interface Answer {
  readonly status: number;
  readonly fields: Record<string, string>;
  readonly body: Bytes;
}

export function readAnswer(content: Bytes): Answer {
  let at = 0;
  const take = (size: number) => {
    if (at + size > content.length) throw new MalformedAnswer("the binary answer is too short");
    return content.subarray(at, (at += size));
  };
  const number = () => {
    const size = 1 << (take(1)[0] >> 6);
    at -= 1;
    return Number(numberOf(take(size)) & ((1n << BigInt(8 * size - 2)) - 1n));
  };
  const text = () => new TextDecoder().decode(take(number()));
  const rest = () => (at < content.length ? number() : 0); // parts that are missing at the end are empty
  if (number() !== 1) throw new MalformedAnswer("this is not a binary answer of known length");
  let status = number();
  for (; status < 200; status = number()) take(number()); // informational
  const fields: Record<string, string> = {}, end = rest() + at;
  while (at < end) fields[text().toLowerCase()] = text();
  const body = take(rest());
  if (content.subarray(at).some((byte) => byte)) throw new MalformedAnswer("the padding of the answer is not zero");
  return { status, fields, body };
}

// ---------------------------------------------------------------- HPKE (RFC 9180) and encapsulation

async function hmac(key: Uint8Array, ...parts: (ArrayLike<number> | string)[]): Promise<Bytes> {
  const secret = key.length ? joined(key) : new Uint8Array(32); // the same to HMAC
  const made = await crypto.subtle.importKey("raw", secret, { name: "HMAC", hash: "SHA-256" }, false, ["sign"]);
  return new Uint8Array(await crypto.subtle.sign("HMAC", made, joined(...parts)));
}

/** HKDF-Expand for at most 32 bytes. */
async function expand(key: Bytes, length: number, ...info: (ArrayLike<number> | string)[]): Promise<Bytes> {
  return (await hmac(key, ...info, [1])).subarray(0, length);
}

function labelled(suite: Bytes) {
  return {
    extract: (salt: Bytes, label: string, content: Bytes) => hmac(salt, "HPKE-v1", suite, label, content),
    expand: (key: Bytes, label: string, info: Bytes, length: number) =>
      expand(key, length, bytesOf(length, 2), "HPKE-v1", suite, label, info),
  };
}

async function cipher(key: Bytes): Promise<CryptoKey> {
  return crypto.subtle.importKey("raw", joined(key), "AES-GCM", false, ["encrypt", "decrypt"]);
}

async function newPair(): Promise<CryptoKeyPair> {
  return (await crypto.subtle.generateKey("X25519", false, ["deriveBits"])) as CryptoKeyPair;
}

/**
 * The gateway's keys, if the study signed them and they are valid at `now`, in seconds since 1970.
 *
 * Throws UnsignedKeys if not, and NotSupportedError in a browser without Ed25519.
 */
export async function checkKeys(signed: Bytes, signer: Bytes, now: number): Promise<Bytes> {
  const end = Math.max(0, signed.length - 64), content = signed.slice(0, end), signature = signed.slice(end);
  const key = await crypto.subtle.importKey("raw", signer, "Ed25519", false, ["verify"]);
  if (!(await crypto.subtle.verify("Ed25519", key, signature, joined("sqsgd gateway keys\0", content)))) {
    const advice = "tell the study's owner, and try again from another network";
    throw new UnsignedKeys(`the study did not sign them: whoever gave them could read reports; ${advice}`);
  }
  const until = Number(numberOf(content.subarray(-8)));
  if (now >= until) {
    const day = new Date(1000 * until).toISOString().slice(0, 16);
    throw new UnsignedKeys(`they expired at ${day}: set this device's clock, or tell the study's owner`);
  }
  return content.subarray(0, -13);
}

/** Number and public key of the first configuration with our algorithms. */
function chosen(keys: Bytes): { number: number; key: Bytes } {
  for (let at = 0; at + 2 <= keys.length; ) {
    const size = keys[at] * 256 + keys[at + 1], found = keys.subarray(at + 2, (at += 2 + size));
    const known = found.length === size && found[1] === KEM[0] && found[2] === KEM[1];
    for (let i = 37; known && i + 4 <= size; i += 4) {
      if (SUITE.every((byte, j) => found[i + j] === byte)) return { number: found[0], key: found.slice(3, 35) };
    }
  }
  throw new MalformedAnswer("the gateway offers no key that this client understands");
}

export interface Encapsulated {
  readonly capsule: Bytes;
  /** The inner answer; throws MalformedAnswer if the gateway did not make it. */
  open(answer: Bytes): Promise<Bytes>;
}

/**
 * Seal a binary request with the keys of a gateway (`application/ohttp-keys`).
 *
 * `pair` is drawn here, except in tests. Throws NotSupportedError in a browser without X25519.
 */
export async function encapsulate(keys: Bytes, inner: Bytes, pair?: CryptoKeyPair): Promise<Encapsulated> {
  const { number, key } = chosen(keys), own = pair ?? (await newPair());
  const receiver = await crypto.subtle.importKey("raw", key, "X25519", false, []);
  const dh = await crypto.subtle.deriveBits({ name: "X25519", public: receiver }, own.privateKey, 256);
  const enc = new Uint8Array(await crypto.subtle.exportKey("raw", own.publicKey));
  const header = joined([number], KEM, SUITE);

  const kem = labelled(joined("KEM", KEM));
  const shared = await kem.extract(NONE, "eae_prk", new Uint8Array(dh));
  const secret = await kem.expand(shared, "shared_secret", joined(enc, key), 32);
  const hpke = labelled(joined("HPKE", KEM, SUITE));
  const info = joined("message/bhttp request", [0], header);
  const hashes = [await hpke.extract(NONE, "psk_id_hash", NONE), await hpke.extract(NONE, "info_hash", info)];
  const schedule = await hpke.extract(secret, "secret", NONE), context = joined([0], ...hashes);
  const part = (label: string, length: number) => hpke.expand(schedule, label, context, length);
  const sealing = { name: "AES-GCM", iv: await part("base_nonce", 12) };
  const sealed = await crypto.subtle.encrypt(sealing, await cipher(await part("key", 16)), inner);
  const exported = await hpke.expand(await part("exp", 32), "sec", ascii("message/bhttp response"), 16);

  return {
    capsule: joined(header, enc, new Uint8Array(sealed)),
    async open(answer) {
      const prk = await hmac(joined(enc, answer.subarray(0, 16)), exported);
      const opening = { name: "AES-GCM", iv: await expand(prk, 12, "nonce") };
      const secret = await cipher(await expand(prk, 16, "key"));
      return crypto.subtle.decrypt(opening, secret, answer.slice(16)).then(
        (opened) => new Uint8Array(opened),
        () => Promise.reject(new MalformedAnswer("the answer was not made by the gateway")),
      );
    },
  };
}
