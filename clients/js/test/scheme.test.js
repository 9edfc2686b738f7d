import assert from "node:assert/strict";
import { test } from "node:test";
import * as sqsgd from "sqsgd";

const IDENTITY = "privunit-index 5\nrotate 2 shared=0\nnearest 6 of 16 vertices 1.0";
const scheme = new sqsgd.Scheme(IDENTITY);
const task = sqsgd.makeTask({ round: 1, client: "7", seed: "18446744073709551615", dim: 5, bound: 1 });
const x = [0.5, -0.25, 0, 0.125, 1];

test("the package exports these names and nothing else", async () => {
  assert.deepEqual(Object.keys(sqsgd).sort(), [
    "Ledger", "MalformedReport", "Refused", "Scheme", "ServiceRefused", "Visit", "checkWeights", "makeTask", "normalised",
    "probabilities", "softHog", "softmaxGradient",
  ]);
  // There is no way to the internals, where tests pass their own words.
  await assert.rejects(import("sqsgd/dist/encoder.js"), { code: "ERR_PACKAGE_PATH_NOT_EXPORTED" });
});

test("noise comes from crypto.getRandomValues and cannot be passed in", () => {
  assert.equal(scheme.encode.length, 2);
  const original = crypto.getRandomValues;
  let filled = 0;
  crypto.getRandomValues = (array) => {
    filled += array.length;
    return original.call(crypto, array);
  };
  try {
    const seeded = { word: () => 0n, words: (count) => new BigUint64Array(count) };
    const messages = new Set();
    for (let i = 0; i < 200; i++) messages.add(String(scheme.encode(x, task, seeded)));
    assert.ok(messages.size > 5);
    assert.ok(filled >= 600);
  } finally {
    crypto.getRandomValues = original;
  }
});

test("each of the nearest vertices is e^ε times as likely as each other one", () => {
  const trials = 20000, counts = new Array(16).fill(0);
  const long = x.map((value) => 100 * value); // beyond the bound: never reversed
  for (let i = 0; i < trials; i++) counts[scheme.open(scheme.encode(long, task), task)[0][0]] += 1;
  const near = 6 * Math.E / (6 * Math.E + 10);
  const sorted = counts.sort((a, b) => b - a);
  const found = sorted.slice(0, 6).reduce((sum, count) => sum + count) / trials;
  assert.ok(Math.abs(found - near) < 5 * Math.sqrt(near * (1 - near) / trials), `${found}, not ${near}`);
  for (const [i, count] of sorted.entries()) {
    const share = i < 6 ? near / 6 : (1 - near) / 10;
    assert.ok(Math.abs(count / trials - share) < 6 * Math.sqrt(share / trials), `vertex ${i}: ${count}`);
  }
});

test("inputs that have no report are refused", () => {
  for (const bad of [[1, 2, 3, 4], [NaN, 0, 0, 0, 0], [Infinity, 0, 0, 0, 0], [2e13, 0, 0, 0, 0]]) {
    assert.throws(() => scheme.encode(bad, task), RangeError);
  }
  assert.throws(() => scheme.encode(x, { ...task, dim: 6 }), /task.dim = 6/);
});

test("weights are refused whatever the data are", () => {
  const weights = new Float32Array(10);
  for (const bad of [Infinity, -Infinity, NaN, 2e13]) {
    weights[2] = bad;
    for (const feature of [-0.5, 0, 0.5]) {
      const features = [0.1, 0.2, feature, 0.3, 0.4];
      assert.throws(() => sqsgd.softmaxGradient(weights, [{ features, label: 0 }]), /weight 2/, `${bad} ${feature}`);
      assert.throws(() => sqsgd.probabilities(weights, features), /weight 2/);
    }
  }
  // Up to the limit every gradient is finite.
  for (const large of [1e13, -1e13]) {
    const { gradient } = sqsgd.softmaxGradient(weights.fill(large, 0, 5), [{ features: [1, -1, 1, 0, 1], label: 1 }]);
    assert.ok(gradient.every(Number.isFinite));
  }
});

test("an identity is one text or a list of lines", () => {
  const listed = new sqsgd.Scheme(IDENTITY.split("\n"));
  assert.equal(listed.identity, IDENTITY);
  assert.deepEqual(listed.fingerprint, scheme.fingerprint);
});

test("schemes that this client does not know are refused", () => {
  for (const identity of [
    "fedsgd 5\nfloats",
    IDENTITY.replace("16", "32"),
    IDENTITY.replace("nearest 6", "nearest 0"),
    IDENTITY.replace("1.0", "1e9"),
    IDENTITY.replace("1.0", "-1"),
    IDENTITY.replace("rotate 2", "rotate 4"),
    "",
    "sqsgd 64\nrotate 2 shared=0\ndirection 2.0 (privquant 64 4 40 boundary 46.0) (scalardp 4 4.0)",
    "sqsgd 64\nrotate 2 shared=0\nsparse 64 8 4 5 3.0 (coin)",
  ]) {
    assert.throws(() => new sqsgd.Scheme(identity), Error, identity);
  }
});

test("tasks are checked", () => {
  const given = { round: 1, client: 7, seed: 9, dim: 5, bound: 1 };
  assert.equal(sqsgd.makeTask(given).client, 7n);
  for (const wrong of [
    { round: -1 }, { round: 2 ** 32 }, { round: 0.5 }, { client: "18446744073709551615" }, { seed: 2 ** 60 },
    { seed: "-1" }, { seed: "0x10" }, { dim: 0 }, { bound: 0 }, { bound: NaN }, { bound: "1" }, { clip: Infinity },
  ]) {
    assert.throws(() => sqsgd.makeTask({ ...given, ...wrong }), RangeError, JSON.stringify(wrong));
  }
});
