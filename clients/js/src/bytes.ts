/** Bytes as text and as numbers, and digests of them. */

export type Bytes = Uint8Array<ArrayBuffer>;

export const ascii = (text: string): Bytes => new TextEncoder().encode(text);

/** The parts one after the other; texts are ASCII. */
export function joined(...parts: (ArrayLike<number> | string)[]): Bytes {
  return Uint8Array.from(parts.flatMap((part) => Array.from(typeof part === "string" ? ascii(part) : part)));
}

export function hex(bytes: Uint8Array): string {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function unhex(text: string): Bytes {
  return Uint8Array.from(text.match(/../g) ?? [], (pair) => parseInt(pair, 16));
}

/** Big-endian. */
export const numberOf = (bytes: Uint8Array): bigint => BigInt(`0x${hex(bytes)}`);

export function bytesOf(number: bigint | number, length: number): Bytes {
  return unhex(number.toString(16).padStart(2 * length, "0"));
}

export function base64url(bytes: Uint8Array): string {
  const text = Array.from(bytes, (byte) => String.fromCharCode(byte)).join("");
  return btoa(text).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

/** Throws for what is not base64url. */
export function fromBase64url(text: string): Bytes {
  const decoded = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
  return Uint8Array.from(decoded, (letter) => letter.charCodeAt(0));
}

export async function sha(size: 256 | 384, ...parts: (ArrayLike<number> | string)[]): Promise<Bytes> {
  return new Uint8Array(await crypto.subtle.digest(`SHA-${size}`, joined(...parts)));
}

export const random = (length: number): Bytes => crypto.getRandomValues(new Uint8Array(length));
