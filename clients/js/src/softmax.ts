/** A softmax classifier without biases: class scores, loss and gradient of examples. */

export interface Gradient {
  readonly loss: number;
  /** Class by class, as long as the weights. */
  readonly gradient: Float32Array;
}

const LARGEST = 1e13;

/**
 * Throws unless all weights are finite and within ±1e13.
 *
 * The server chooses the weights. With one infinite weight, whether the gradient is finite would tell the sign of a
 * feature, so this is decided from the weights alone, before any data is used.
 */
export function checkWeights(weights: ArrayLike<number>): void {
  for (let i = 0; i < weights.length; i++) {
    if (!(Math.abs(weights[i]) <= LARGEST)) {
      throw new RangeError(`weight ${i} = ${weights[i]} must be finite and within ±1e13`);
    }
  }
}

/** The probability of each class; weights are class by class. */
export function probabilities(weights: ArrayLike<number>, features: ArrayLike<number>): Float64Array {
  checkWeights(weights);
  const width = features.length, classes = weights.length / width;
  if (!Number.isInteger(classes) || classes < 2) {
    throw new RangeError(`${weights.length} weights are not those of two or more classes of ${width} features`);
  }
  const scores = Float64Array.from({ length: classes }, (_, c) => {
    let score = 0;
    for (let j = 0; j < width; j++) score += weights[c * width + j] * features[j];
    return score;
  });
  const most = Math.max(...scores);
  const powers = scores.map((score) => Math.exp(score - most));
  const whole = powers.reduce((sum, value) => sum + value, 0);
  return powers.map((power) => power / whole);
}

/** Mean cross entropy of the examples and its gradient: what a device reports. */
export function softmaxGradient(
  weights: ArrayLike<number>,
  examples: readonly { features: ArrayLike<number>; label: number }[],
): Gradient {
  checkWeights(weights);
  if (examples.length === 0) throw new RangeError("a gradient needs at least one example");
  const total = new Float64Array(weights.length);
  let loss = 0;
  for (const { features, label } of examples) {
    const chances = probabilities(weights, features);
    if (!(Number.isInteger(label) && label >= 0 && label < chances.length)) {
      throw new RangeError(`label = ${label} must be below ${chances.length}`);
    }
    loss -= Math.log(chances[label]);
    chances.forEach((chance, c) => {
      const error = (chance - +(c === label)) / examples.length;
      for (let j = 0; j < features.length; j++) total[c * features.length + j] += error * features[j];
    });
  }
  return { loss: loss / examples.length, gradient: Float32Array.from(total) };
}
