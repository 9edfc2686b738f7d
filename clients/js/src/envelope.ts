/** The envelope of a report: version and checksum, which is bound to the scheme and the task. */

import { MalformedReport, type Column } from "./columns.js";
import { binding, type Task } from "./task.js";

const TABLE = Uint32Array.from({ length: 256 }, (_, i) => {
  for (let bit = 0; bit < 8; bit++) i = i & 1 ? (i >>> 1) ^ 0xedb88320 : i >>> 1;
  return i;
});

function checksum(...parts: Uint8Array[]): number {
  let sum = ~0;
  for (const part of parts) for (const byte of part) sum = TABLE[(sum ^ byte) & 255] ^ (sum >>> 8);
  return ~sum >>> 0;
}

const VERSION = 1;
/** Bytes of the envelope. */
const ENVELOPE = 5;

export function messageLength(layout: readonly Column[]): number {
  return layout.reduce((total, column) => total + column.length, ENVELOPE);
}

export function seal(
  fingerprint: Uint8Array,
  task: Task,
  layout: readonly Column[],
  columns: readonly ArrayLike<number>[],
): Uint8Array {
  const message = new Uint8Array(messageLength(layout));
  let end = ENVELOPE;
  layout.forEach((column, i) => {
    message.set(column.pack(columns[i]), end);
    end += column.length;
  });
  message[0] = VERSION;
  const sum = checksum(Uint8Array.of(VERSION, ...fingerprint), binding(task), message.subarray(ENVELOPE));
  new DataView(message.buffer).setUint32(1, sum, true);
  return message;
}

/** The columns of a message; throws MalformedReport, which names the first problem. */
export function unseal(
  fingerprint: Uint8Array,
  task: Task,
  layout: readonly Column[],
  message: Uint8Array,
): number[][] {
  if (message.length < ENVELOPE) {
    throw new MalformedReport("length", `${message.length} bytes are too few: the envelope has ${ENVELOPE}`);
  }
  if (message[0] !== VERSION) {
    throw new MalformedReport("version", `wire format ${message[0]} is unknown; this program reads ${VERSION}`);
  }
  const length = messageLength(layout);
  if (message.length !== length) {
    throw new MalformedReport("length", `the report has ${message.length} bytes; it must have ${length}`);
  }
  const sent = new DataView(message.buffer, message.byteOffset).getUint32(1, true);
  if (sent !== checksum(Uint8Array.of(VERSION, ...fingerprint), binding(task), message.subarray(ENVELOPE))) {
    throw new MalformedReport("checksum", "the report is damaged, or for another scheme or task");
  }
  let end = ENVELOPE;
  return layout.map((column) => column.unpack(message.subarray(end, (end += column.length))));
}
