/** soft-hog: fixed public features of an image, as `sqsgd.learning.hog.soft_hog` computes them. */

const DIRECTIONS = 8;
const CELL = 4;
const WIDTH = 1.7;
const COMMON = 0.7;

/** Pixels of 0..255 as the features expect them: (pixel / 255 - mean) / deviation. */
export function normalised(pixels: ArrayLike<number>, mean: number, deviation: number): Float32Array {
  return Float32Array.from(pixels, (pixel) => (pixel / 255 - mean) / deviation);
}

/** Weights of a line's pixels in each of its soft cells. */
function cellWeights(size: number): Float64Array[] {
  return Array.from({ length: size / CELL }, (_, cell) => {
    const middle = cell * CELL + (CELL - 1) / 2;
    const bell = Float64Array.from({ length: size }, (_, i) => Math.exp(-0.5 * ((i - middle) / WIDTH) ** 2));
    const whole = bell.reduce((sum, value) => sum + value, 0);
    return bell.map((value) => value / whole);
  });
}

function toUnitLength(values: Float64Array): Float64Array {
  const length = Math.max(Math.sqrt(values.reduce((sum, value) => sum + value * value, 0)), 1e-6);
  return values.map((value) => value / length);
}

/** The strength of the gradient at every pixel, split over the two nearest of eight directions. */
function edges(image: ArrayLike<number>, height: number, width: number): Float64Array {
  const pixel = (y: number, x: number) => (y < 0 || x < 0 || y >= height || x >= width ? 0 : image[y * width + x]);
  const strength = new Float64Array(DIRECTIONS * height * width);
  const step = (2 * Math.PI) / DIRECTIONS;
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      const across = pixel(y, x + 1) - pixel(y, x - 1), down = pixel(y + 1, x) - pixel(y - 1, x);
      const size = Math.hypot(across, down);
      const place = (Math.atan2(down, across) / step + DIRECTIONS) % DIRECTIONS;
      const lower = Math.floor(place), part = place - lower;
      strength[(lower % DIRECTIONS) * height * width + y * width + x] += size * (1 - part);
      strength[((lower + 1) % DIRECTIONS) * height * width + y * width + x] += size * part;
    }
  }
  return strength;
}

/** Features of a grey image, a row of unit length: 8 directions in each cell of 4 x 4 pixels. */
export function softHog(image: ArrayLike<number>, height: number, width: number): Float32Array {
  if (image.length !== height * width || height % CELL || width % CELL) {
    throw new RangeError(`an image of ${image.length} pixels is not ${height} x ${width}, in multiples of ${CELL}`);
  }
  const strength = edges(image, height, width);
  const rows = cellWeights(height), columns = cellWeights(width);
  const places = rows.length * columns.length;
  const pooled = new Float64Array(DIRECTIONS * places);
  for (let direction = 0; direction < DIRECTIONS; direction++) {
    rows.forEach((row, i) => {
      const line = new Float64Array(width);
      for (let y = 0; y < height; y++) {
        const start = (direction * height + y) * width;
        for (let x = 0; x < width; x++) line[x] += row[y] * strength[start + x];
      }
      columns.forEach((column, j) => {
        const strengthHere = column.reduce((sum, share, x) => sum + share * line[x], 0);
        pooled[direction * places + i * columns.length + j] = strengthHere;
      });
    });
  }
  const cells = toUnitLength(pooled.map(Math.sqrt));
  const whole = cells.reduce((sum, value) => sum + value, 0) / cells.length;
  const byPlace = new Float64Array(places), byDirection = new Float64Array(DIRECTIONS);
  cells.forEach((value, i) => {
    byPlace[i % places] += value / DIRECTIONS;
    byDirection[Math.floor(i / places)] += value / places;
  });
  const features = cells.map((value, i) => {
    const common = byPlace[i % places] + byDirection[Math.floor(i / places)] - 2 * whole;
    return value - whole - (1 - COMMON) * common;
  });
  return Float32Array.from(toUnitLength(features));
}
