import assert from "node:assert/strict";
import { createCipheriv, createHash, randomBytes } from "node:crypto";
import { test } from "node:test";
import { blake2b } from "../dist/blake2b.js";
import { keystream } from "../dist/keystream.js";
import { nearest, norm } from "../dist/vectors.js";
import { SecureWords } from "../dist/words.js";

test("the keystream is that of OpenSSL's AES-256 in counter mode from the client's block on", () => {
  for (const length of [1, 16, 100, 5000]) {
    const key = randomBytes(32), client = randomBytes(8);
    const counter = Buffer.concat([client, Buffer.alloc(8)]);
    const expected = createCipheriv("aes-256-ctr", key, counter).update(Buffer.alloc(length));
    assert.deepEqual(Buffer.from(keystream(new Uint8Array(key), client.readBigUInt64BE(), length)), expected);
  }
});

test("BLAKE2b is that of OpenSSL where both can do it", () => {
  for (const length of [0, 1, 127, 128, 129, 256, 1000]) {
    const message = randomBytes(length);
    const expected = createHash("blake2b512").update(message).digest();
    assert.deepEqual(Buffer.from(blake2b(new Uint8Array(message), 64, "")), expected);
  }
});

test("the nearest coordinates: of equal magnitudes the first, and -0 is positive", () => {
  assert.deepEqual([...nearest(Float32Array.of(1, -2, 2, -3, 2), 3)], [3, 4, 7]);
  assert.deepEqual([...nearest(Float32Array.of(-0, 0, -0), 2)], [0, 2]);
  assert.deepEqual([...nearest(Float32Array.of(-1e-45, 1), 2)], [1, 2]);
});

test("the nearest coordinates are those of a sort", () => {
  for (let trial = 0; trial < 200; trial++) {
    const x = Float32Array.from({ length: 1 + (trial % 50) }, () => Math.round(8 * Math.random() - 4) / 4);
    const count = 1 + Math.floor(Math.random() * x.length);
    const order = [...x.keys()].sort((a, b) => Math.abs(x[b]) - Math.abs(x[a]) || a - b).slice(0, count);
    const expected = order.sort((a, b) => a - b).map((i) => 2 * i + +(x[i] < 0));
    assert.deepEqual([...nearest(x, count)], expected);
  }
});

test("norms neither overflow nor underflow", () => {
  assert.equal(norm(Float32Array.of(3e13, 4e13)) / 1e13 > 4.99, true);
  assert.equal(norm(Float32Array.of(Math.fround(1e-44))), Math.fround(1e-44));
});

test("all private words are drawn, however many are asked for at once, and none is handed out twice", () => {
  const words = new SecureWords();
  for (const count of [1, 8191, 8192, 8193, 16384, 40000]) {
    const found = words.words(count);
    assert.equal(found.length, count);
    assert.equal(new Set(found).size, count, "2^-33 for a repeat by chance");
    assert.equal(found.includes(0n), false);
  }
  const single = Array.from({ length: 5000 }, () => words.word());
  assert.equal(new Set(single).size, 5000);
  assert.equal(single.includes(0n), false);
});

test("private words come from the platform's generator alone, each bit of it used", () => {
  const real = crypto.getRandomValues;
  const drawn = [];
  crypto.getRandomValues = (target) => drawn.push(real.call(crypto, target).slice()) && target;
  try {
    const words = new SecureWords();
    const found = [...words.words(20000), words.word(), words.word()];
    const given = drawn.flatMap((part) => [...part]);
    assert.deepEqual(found, given.slice(0, found.length));
  } finally {
    delete crypto.getRandomValues;
  }
});
