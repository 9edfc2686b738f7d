/** Columns of whole numbers to bytes and back. */

/** Why a message is not a valid report for a task; `reason` is one word. */
export class MalformedReport extends Error {
  override name = "MalformedReport";
  constructor(readonly reason: string, text: string) {
    super(text);
  }
}

export interface Column {
  /** Bytes of the packed column. */
  readonly length: number;
  pack(codes: ArrayLike<number>): Uint8Array;
  unpack(bytes: Uint8Array): number[];
}

function bytesOf(number: bigint, length: number): Uint8Array {
  return Uint8Array.from({ length }, (_, i) => Number((number >> BigInt(8 * i)) & 255n));
}

function numberOf(bytes: Uint8Array): bigint {
  return bytes.reduceRight((number, byte) => (number << 8n) | BigInt(byte), 0n);
}

/** One code below `alphabet`, little-endian. */
export function oneCode(alphabet: number): Column {
  const bits = (alphabet - 1).toString(2).length;
  const length = Math.ceil(bits / 8);
  return {
    length,
    pack: (codes) => bytesOf(BigInt(codes[0]), length),
    unpack(bytes) {
      const code = Number(numberOf(bytes));
      if (code >= 2 ** bits) {
        throw new MalformedReport("padding", "the unused bits at the end of a column are not zero");
      }
      if (code >= alphabet) throw new MalformedReport("code", `a column contains a code above ${alphabet - 1}`);
      return [code];
    },
  };
}

/** `count` bits, the first in the lowest bit of the first byte. */
export function bitColumn(count: number): Column {
  const length = Math.ceil(count / 8);
  return {
    length,
    pack(codes) {
      const bytes = new Uint8Array(length);
      for (let i = 0; i < count; i++) bytes[i >> 3] |= codes[i] << (i & 7);
      return bytes;
    },
    unpack(bytes) {
      if (count % 8 && bytes[length - 1] >> count % 8) {
        throw new MalformedReport("padding", "the unused bits at the end of a column are not zero");
      }
      return Array.from({ length: count }, (_, i) => (bytes[i >> 3] >> (i & 7)) & 1);
    },
  };
}

/** `count` of `size` coordinates with signs, as rising codes 2 place + sign: one number. */
export function signedSubset(count: number, size: number): Column {
  let largest = 1n << BigInt(count);
  for (let n = count; n > 0; n--) largest = ((largest + BigInt(n - 1)) / BigInt(n)) * BigInt(size - n + 1);
  const length = Math.ceil((largest - 1n).toString(2).length / 8);
  return {
    length,
    pack(codes) {
      const places = Array.from(codes, (code) => code >> 1);
      let z = Array.from(codes).reduceRight((bits, code) => (bits << 1n) | BigInt(code & 1), 0n);
      for (let n = count; n > 0; n--) {
        const i = Number(z % BigInt(n));
        const [place] = places.splice(i, 1);
        z = (z / BigInt(n)) * BigInt(size - n + 1) + BigInt(place - i);
      }
      return bytesOf(z, length);
    },
    unpack(bytes) {
      const places: number[] = []; // rising
      let z = numberOf(bytes);
      for (let n = 1; n <= count; n++) {
        const free = BigInt(size - n + 1);
        const rank = Number(z % free);
        let before = 0;
        while (before < places.length && places[before] - before <= rank) before++;
        places.splice(before, 0, rank + before);
        z = (z / free) * BigInt(n) + BigInt(before);
      }
      if (z >> BigInt(count)) throw new MalformedReport("code", "the report holds a number that no subset has");
      return places.map((place, i) => 2 * place + Number((z >> BigInt(i)) & 1n));
    },
  };
}
