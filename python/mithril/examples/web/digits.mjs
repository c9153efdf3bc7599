// What the page of digits does with its model, without the page: training, recognising, and what a drawing becomes.

export const SIDE = 8;
const PIXELS = SIDE * SIDE;
const TRAINING = 1437; // the images behind these are for testing

/** Turns a drawing, ink from 0 to 1 row by row, into an image of 8 by 8: cut to the ink, centred, averaged. */
export function shrink(ink, width, height) {
  let [left, right, top, bottom] = [width, -1, height, -1];
  for (let y = 0; y < height; y++)
    for (let x = 0; x < width; x++)
      if (ink[y * width + x] > 0.1) {
        [left, right] = [Math.min(left, x), Math.max(right, x)];
        [top, bottom] = [Math.min(top, y), Math.max(bottom, y)];
      }
  const image = new Float32Array(PIXELS);
  if (right < 0) return image;
  const size = Math.max(right - left, bottom - top) + 1;
  const [fromX, fromY] = [(left + right + 1 - size) / 2, (top + bottom + 1 - size) / 2];
  const counts = new Float32Array(PIXELS);
  // Points of a fine grid, so that small drawings have an average in every pixel too.
  const fine = SIDE * Math.max(4, Math.ceil(size / SIDE));
  for (let y = 0; y < fine; y++)
    for (let x = 0; x < fine; x++) {
      const [sourceX, sourceY] = [Math.floor(fromX + (x * size) / fine), Math.floor(fromY + (y * size) / fine)];
      const pixel = Math.floor((y * SIDE) / fine) * SIDE + Math.floor((x * SIDE) / fine);
      const inside = sourceX >= 0 && sourceX < width && sourceY >= 0 && sourceY < height;
      image[pixel] += inside ? ink[sourceY * width + sourceX] : 0;
      counts[pixel]++;
    }
  return image.map((sum, i) => sum / counts[i]);
}

/** A model that recognises digits, and the images that it learns from. */
export class Digits {
  /** The training step of ./model, and the bytes of digits.bin: pixels from 0 to 16, then labels. */
  constructor(model, bytes) {
    this.model = model;
    this.count = bytes.length / (PIXELS + 1);
    this.images = Float32Array.from(bytes.subarray(0, this.count * PIXELS), (x) => x / 16);
    this.labels = bytes.subarray(this.count * PIXELS);
    this.batch = model.inputs.find(({ name }) => name === "target").shape[0];
    this.taught = []; // [image, label] that were drawn
  }

  image(index) {
    return this.images.subarray(index * PIXELS, (index + 1) * PIXELS);
  }

  /** One step with images and labels, fewer than a batch or as many: the first of them fill it up. */
  async step(images, labels, rate) {
    const input = new Float32Array(this.batch * PIXELS);
    const target = new BigInt64Array(this.batch);
    for (let row = 0; row < this.batch; row++) {
      input.set(images[row % images.length], row * PIXELS);
      target[row] = BigInt(labels[row % labels.length]);
    }
    return this.model.step({ input, target, learning_rate: rate });
  }

  /** The probability of each digit. A step with the learning rate 0 changes nothing. */
  async recognise(image) {
    const { logits } = await this.step([image], [0], 0);
    const scores = logits.subarray(0, 10);
    const highest = Math.max(...scores);
    const powers = Array.from(scores, (x) => Math.exp(x - highest));
    const sum = powers.reduce((a, b) => a + b);
    return powers.map((x) => x / sum);
  }

  /** One pass over the images, in a new order, and over what was drawn; returns the mean loss. */
  async epoch(random = Math.random) {
    const order = Array.from({ length: TRAINING }, (_, i) => i);
    for (let i = order.length - 1; i > 0; i--) {
      const j = Math.floor(random() * (i + 1));
      [order[i], order[j]] = [order[j], order[i]];
    }
    let [sum, steps] = [0, 0];
    for (let at = 0; at + this.batch <= order.length; at += this.batch, steps++) {
      const rows = order.slice(at, at + this.batch);
      const images = rows.map((row) => this.image(row));
      const labels = rows.map((row) => this.labels[row]);
      if (this.taught.length) [images[0], labels[0]] = this.taught[steps % this.taught.length];
      sum += (await this.step(images, labels, 0.1)).loss[0];
    }
    return sum / steps;
  }

  /** Remembers a drawing with its digit, for all further steps, and takes some steps with it. */
  async teach(image, label, random = Math.random) {
    this.taught.push([image, label]);
    for (let step = 0; step < 20; step++) {
      const rows = Array.from({ length: this.batch - 4 }, () => Math.floor(random() * TRAINING));
      const images = [...Array(4).fill(image), ...rows.map((row) => this.image(row))];
      const labels = [...Array(4).fill(label), ...rows.map((row) => this.labels[row])];
      await this.step(images, labels, 0.1);
    }
  }

  /** The part of the images for testing that are recognised. */
  async accuracy() {
    let right = 0;
    for (let at = TRAINING; at < this.count; at += this.batch) {
      const rows = Array.from({ length: Math.min(this.batch, this.count - at) }, (_, i) => at + i);
      const { logits } = await this.step(rows.map((row) => this.image(row)), [0], 0);
      for (const [i, row] of rows.entries()) {
        const scores = logits.subarray(10 * i, 10 * i + 10);
        right += scores.indexOf(Math.max(...scores)) === this.labels[row];
      }
    }
    return right / (this.count - TRAINING);
  }
}
