/** Features and gradients for the tests in Python: reads lines of JSON, writes a line of results for each. */

import { createInterface } from "node:readline";
import { softHog, softmaxGradient } from "sqsgd";

for await (const line of createInterface({ input: process.stdin })) {
  const { images, labels, height, width, weights } = JSON.parse(line);
  const features = images.map((image) => softHog(image, height, width));
  const examples = features.map((row, i) => ({ features: row, label: labels[i] }));
  const { loss, gradient } = softmaxGradient(weights, examples);
  console.log(JSON.stringify({ features: features.map((row) => [...row]), loss, gradient: [...gradient] }));
}
