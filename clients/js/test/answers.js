/** Answers to conformance vectors: reads groups as lines of JSON, writes a line of answers for each. */

import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";
import { MalformedReport } from "../dist/columns.js";
import { Encoder } from "../dist/encoder.js";
import { makeTask } from "../dist/task.js";

export const bytes = (hex) => Uint8Array.from(hex.match(/../g) ?? [], (pair) => parseInt(pair, 16));
export const hex = (data) => Array.from(data, (byte) => byte.toString(16).padStart(2, "0")).join("");
export const floats = (text) => {
  const view = new DataView(Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer);
  return Float32Array.from({ length: view.byteLength / 4 }, (_, i) => view.getFloat32(4 * i, true));
};

/** Replays given words; complains about words that are missing or left over. */
export class GivenWords {
  constructor(text) {
    this.script = text.match(/.{16}/g)?.map((digits) => BigInt(`0x${digits}`)) ?? [];
    this.used = 0;
  }

  word() {
    if (this.used === this.script.length) throw new Error("more private words are drawn than were given");
    return this.script[this.used++];
  }

  words(count) {
    return BigUint64Array.from({ length: count }, () => this.word());
  }
}

function encoded(encoder, given) {
  const words = new GivenWords(given.words);
  const message = hex(encoder.encode(floats(given.x), makeTask(given.task), words));
  if (words.used !== words.script.length) {
    throw new Error(`${given.id}: ${words.used} of ${words.script.length} words used`);
  }
  return message;
}

function reason(encoder, given) {
  try {
    encoder.open(bytes(given.message), makeTask(given.task));
    return "accepted";
  } catch (error) {
    if (error instanceof MalformedReport) return error.reason;
    throw error;
  }
}

/** The answers to one group. */
export function answers(group) {
  const encoder = new Encoder(group.identity);
  const each = (cases, answer) => Object.fromEntries((cases ?? []).map((given) => [given.id, answer(given)]));
  return {
    fingerprints: { [group.name]: hex(encoder.fingerprint) },
    messages: each(group.encode, (given) => encoded(encoder, given)),
    columns: each(group.decode, (given) => encoder.open(bytes(given.message), makeTask(given.task))),
    reasons: each(group.malformed, (given) => reason(encoder, given)),
  };
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  for await (const line of createInterface({ input: process.stdin })) {
    console.log(JSON.stringify(answers(JSON.parse(line))));
  }
}
