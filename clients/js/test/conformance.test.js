import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { Encoder } from "../dist/encoder.js";
import { makeTask } from "../dist/task.js";
import { answers, floats, GivenWords } from "./answers.js";

const path = new URL("../../../src/sqsgd/audit/vectors.json", import.meta.url);
const { format, groups } = JSON.parse(readFileSync(path, "utf8"));
const by = (cases, key) => Object.fromEntries(cases.map((given) => [given.id, given[key]]));

test("the vectors are of the version that this client was written for", () => {
  assert.equal(format, "sqsgd conformance 1");
  assert.ok(groups.length >= 8);
});

for (const group of groups) {
  test(`${group.name}: messages, columns and reasons are those of Python`, () => {
    const found = answers(group);
    assert.deepEqual(found.fingerprints, { [group.name]: group.fingerprint });
    assert.deepEqual(found.messages, by(group.encode, "message"));
    assert.deepEqual(found.columns, by(group.decode, "columns"));
    assert.deepEqual(found.reasons, by(group.malformed, "reason"));
  });

  test(`${group.name}: stated ε and size are those of Python`, () => {
    const encoder = new Encoder(group.identity);
    assert.equal(encoder.epsilon, group.epsilon);
    assert.equal(encoder.bytes, group.encode[0].message.length / 2);
  });
}

test("a report that needs more words than it is given fails instead of repeating some", () => {
  const [given] = groups[0].encode;
  const encoder = new Encoder(groups[0].identity);
  const words = new GivenWords(given.words.slice(16));
  assert.throws(() => encoder.encode(floats(given.x), makeTask(given.task), words), /more private words/);
});
