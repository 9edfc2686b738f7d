import assert from "node:assert/strict";
import { test } from "node:test";
import { binomials, ExactLaw, exponential } from "../dist/exact.js";
import { GivenWords } from "./answers.js";

const words = (...values) => new GivenWords(values.map((value) => value.toString(16).padStart(16, "0")).join(""));

test("the bounds of e^ε are close and enclose it", () => {
  // e to 60 digits
  const e = 2718281828459045235360287471352662497757247093699959574966967n;
  for (const bits of [64, 128, 190]) {
    const [low, high] = exponential(1, bits);
    assert.ok(low <= (e << BigInt(bits)) / 10n ** 60n + 1n);
    assert.ok(high >= (e << BigInt(bits)) / 10n ** 60n);
    assert.ok(high - low <= 4n);
  }
});

test("e^a e^b = e^(a + b) within the bounds", () => {
  for (const [a, b] of [[0.125, 0.375], [3.5, 4.5], [0.0078125, 8], [100, 300.25]]) {
    const bits = 200n;
    const [x, y, z] = [a, b, a + b].map((epsilon) => exponential(epsilon, Number(bits)));
    assert.ok((x[0] * y[0]) >> bits <= z[1]);
    assert.ok((x[1] * y[1]) >> bits >= z[0] - 1n);
    assert.ok((z[1] - z[0]) << 150n < z[0], "narrow");
  }
});

/** floor(2^64 low / (low + high e^ε)), from bounds that agree. */
function edge(low, high, epsilon) {
  const places = 400n;
  const [one, other] = exponential(epsilon, Number(places)).map(
    (power) => (BigInt(low) << (places + 64n)) / ((BigInt(low) << places) + BigInt(high) * power),
  );
  assert.equal(one, other);
  return one;
}

for (const [low, high, epsilon] of [[8167, 25, 8], [202, 54, 2], [1, 1, 0.01], [4, 1, 30.5]]) {
  test(`a coin with ${low} against ${high} e^${epsilon} has exactly this law`, () => {
    const law = ExactLaw.coin(low, high, epsilon);
    const at = edge(low, high, epsilon);
    assert.equal(law.draw(words(at - 1n)), 0);
    assert.equal(law.draw(words(at + 1n)), 1);
    assert.equal(law.draw(words(at, 0n)), 0);
    assert.equal(law.draw(words(at, 2n ** 64n - 1n)), 1);
    assert.throws(() => law.draw(words(at)), /more private words/, "a tied word decides nothing");
  });
}

test("the values of a law follow its counts", () => {
  const law = ExactLaw.of([1n, 3n, 0n, 3n, 1n], 3, 1);
  const whole = 4 + 4 * Math.E;
  let before = 0;
  [1, 3, 0, 3 * Math.E, Math.E].forEach((weight, value) => {
    if (weight) {
      const middle = BigInt(Math.floor(((before + weight / 2) / whole) * 2 ** 32)) << 32n;
      assert.equal(law.draw(words(middle)), value);
    }
    before += weight;
  });
});

test("binomial coefficients", () => {
  assert.deepEqual(binomials(6, 6), [1n, 6n, 15n, 20n, 15n, 6n, 1n]);
  assert.equal(binomials(100, 50)[50], 100891344545564193334812497256n);
});
