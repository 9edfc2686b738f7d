/** The envelope of a report: version, checksum and, in version 1, scheme and round. */

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

function header(wire: number, fingerprint: Uint8Array, task: Task): Uint8Array {
  if (wire === 2) return Uint8Array.of(2, ...fingerprint);
  const bytes = Uint8Array.of(0x53, 0x51, 1, 0, ...fingerprint, 0, 0, 0, 0, 0, 0, 0, 0);
  new DataView(bytes.buffer).setUint32(8, task.round, true);
  return bytes;
}

/** Bytes of the envelope, and where the checksum stands in it. */
const SIZES: Record<number, [number, number]> = { 1: [16, 12], 2: [5, 1] };

export function messageLength(wire: number, layout: readonly Column[]): number {
  return layout.reduce((total, column) => total + column.length, SIZES[wire][0]);
}

export function seal(
  wire: number,
  fingerprint: Uint8Array,
  task: Task,
  layout: readonly Column[],
  columns: readonly ArrayLike<number>[],
): Uint8Array {
  const [start, at] = SIZES[wire];
  const before = header(wire, fingerprint, task);
  const message = new Uint8Array(messageLength(wire, layout));
  message.set(before.subarray(0, at));
  let end = start;
  layout.forEach((column, i) => {
    message.set(column.pack(columns[i]), end);
    end += column.length;
  });
  const sum = checksum(before, binding(task), message.subarray(start));
  new DataView(message.buffer).setUint32(at, sum, true);
  return message;
}

/** The columns of a message; throws MalformedReport, which names the first problem. */
export function unseal(
  wire: number,
  fingerprint: Uint8Array,
  task: Task,
  layout: readonly Column[],
  message: Uint8Array,
): number[][] {
  const [start, at] = SIZES[wire];
  if (message.length < start) {
    throw new MalformedReport("length", `${message.length} bytes are too few: the envelope has ${start}`);
  }
  const before = header(wire, fingerprint, task);
  const differs = (from: number, to: number) => before.subarray(from, to).some((byte, i) => byte !== message[from + i]);
  if (wire === 2) {
    if (message[0] !== 2) {
      throw new MalformedReport("version", `the message starts with ${message[0]}; wire format 2 starts with 2`);
    }
  } else {
    if (differs(0, 2)) throw new MalformedReport("magic", "the message does not start with SQ");
    if (differs(2, 4)) throw new MalformedReport("version", `wire format ${message[2]}.${message[3]} is unknown`);
    if (differs(4, 8)) throw new MalformedReport("scheme", "the report is from another scheme or other parameters");
    if (differs(8, 12)) throw new MalformedReport("round", `the report is not for round ${task.round}`);
  }
  const length = messageLength(wire, layout);
  if (message.length !== length) {
    throw new MalformedReport("length", `the report has ${message.length} bytes; it must have ${length}`);
  }
  const sent = new DataView(message.buffer, message.byteOffset).getUint32(at, true);
  if (sent !== checksum(before, binding(task), message.subarray(start))) {
    throw new MalformedReport("checksum", "the report is damaged, or for another scheme or task");
  }
  let end = start;
  return layout.map((column) => column.unpack(message.subarray(end, (end += column.length))));
}
