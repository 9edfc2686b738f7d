import assert from "node:assert/strict";
import { test } from "node:test";
import { binomials, ExactLaw, exponential } from "../dist/exact.js";
import { SparseMatches, sumUp } from "../dist/mechanisms.js";
import { below } from "../dist/words.js";
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

test("a sum of two ε is rounded up", () => {
  const units = (value) => BigInt(value * 2 ** 80); // exact for these
  for (const [a, b] of [[1, 2 ** -60], [2 ** -60, 1], [7.5, 2 ** -51], [0.1, 0.7], [0.1, 0.2], [6, 2], [3.3, 0.4]]) {
    const sum = sumUp(a, b), exact = units(a) + units(b);
    assert.ok(units(sum) >= exact, `${a} + ${b}`);
    assert.ok(units(sum * (1 - 2 ** -51)) < exact, "by no more than a unit in the last place");
  }
});

test("words that would make a draw uneven are skipped, one by one and in runs", () => {
  const most = 2n ** 64n - 1n, few = [5n, 77n, 123456789n, 2n ** 63n, 3n, 2n ** 62n + 11n, 9n, 1n];
  assert.equal(below(3, words(most, 5n)), 2);
  assert.equal(below(2 ** 31 - 1, words(most, most, 12n)), 12);
  const x = Float32Array.of(1, 0, 3, 0, 2, 0, 0, 0, 0, 0, 0);
  const codes = (run) => {
    const given = {
      word: () => 0n, // the same direction, and the first value of the law: no match
      words: (count) => BigUint64Array.from({ length: count }, (_, i) => run[i] ?? BigInt(1000003 * i)),
    };
    return [...new SparseMatches(11, 3, 2, 1, 2, null).randomize(x, 1, given)[0]];
  };
  const expected = codes(few);
  for (const place of [0, 2, 3]) {
    // The bounds are 3, 2, 22, 22; every word serves for 2.
    assert.deepEqual(codes([...few.slice(0, place), most, ...few.slice(place)]), expected, `word ${place}`);
  }
});
