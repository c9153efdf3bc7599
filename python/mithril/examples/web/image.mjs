// What the page does to a picture and to the numbers that the model makes of it.

// The filters of Pillow: how far they reach, and their weights.
const FILTERS = {
  bilinear: [1, (x) => Math.max(0, 1 - Math.abs(x))],
  box: [0.5, (x) => (x > -0.5 && x <= 0.5 ? 1 : 0)],
  bicubic: [
    2,
    (x) => {
      x = Math.abs(x);
      if (x < 1) return (1.5 * x - 2.5) * x * x + 1;
      return x < 2 ? ((-0.5 * x + 2.5) * x - 4) * x + 2 : 0;
    },
  ],
};

// For each place of a line of `to` elements: the first of the `from` elements it is made of, and their weights.
function coefficients(from, to, interpolation) {
  const [reach, filter] = FILTERS[interpolation];
  const ratio = from / to;
  const scale = Math.max(ratio, 1);
  return Array.from({ length: to }, (_, place) => {
    const center = (place + 0.5) * ratio;
    const first = Math.max(0, Math.trunc(center - reach * scale + 0.5));
    const last = Math.min(from, Math.trunc(center + reach * scale + 0.5));
    const weights = Float64Array.from({ length: last - first }, (_, i) => filter((i + first - center + 0.5) / scale));
    const sum = weights.reduce((a, b) => a + b, 0);
    // Pillow multiplies integers: 22 bits behind the point.
    return { first, weights: weights.map((x) => Math.trunc((x / sum) * 2 ** 22 + (x < 0 ? -0.5 : 0.5))) };
  });
}

// Resizes the lines of an image of three channels; `step` is how far elements of a line lie apart.
function resizeLines(pixels, [from, to, lines], step, next, toStep, toNext, interpolation) {
  const found = new Uint8ClampedArray(3 * to * lines);
  coefficients(from, to, interpolation).forEach(({ first, weights }, place) => {
    for (let line = 0; line < lines; line++)
      for (let channel = 0; channel < 3; channel++) {
        let sum = 2 ** 21;
        for (let i = 0; i < weights.length; i++) sum += pixels[(first + i) * step + line * next + channel] * weights[i];
        found[place * toStep + line * toNext + channel] = Math.floor(sum / 2 ** 22);
      }
  });
  return found;
}

// Resizes an image of three channels as Pillow does: across, then down, rounded to 8 bits in between.
export function resize({ pixels, width, height }, [toWidth, toHeight], interpolation) {
  let found = pixels;
  if (toWidth !== width) found = resizeLines(found, [width, toWidth, height], 3, 3 * width, 3, 3 * toWidth, interpolation);
  if (toHeight !== height)
    found = resizeLines(found, [height, toHeight, toWidth], 3 * toWidth, 3, 3 * toWidth, 3, interpolation);
  return { pixels: found, width: toWidth, height: toHeight };
}

// The three channels of pixels with transparency, in front of a background.
export function opaque({ data, width, height }, background) {
  const pixels = new Uint8ClampedArray(3 * width * height);
  for (let i = 0; i < width * height; i++) {
    const alpha = data[4 * i + 3];
    for (let c = 0; c < 3; c++)
      pixels[3 * i + c] = alpha === 255 ? data[4 * i + c] : Math.round((data[4 * i + c] * alpha + background[c] * (255 - alpha)) / 255);
  }
  return { pixels, width, height };
}

// Half-way numbers to the even one, as Python rounds.
const rounded = (x) => (x % 1 === 0.5 ? 2 * Math.round(x / 2) : Math.round(x));

function offset(size, crop, rounding) {
  if (size < crop) return -Math.floor((crop - size) / 2);
  return rounding === "even" ? rounded((size - crop) / 2) : Math.floor((size - crop) / 2);
}

/** What the model sees of an image (`data` with red, green, blue and alpha, `width`, `height`): floats [3, height, width]. */
export function preprocess(image, options) {
  const { resize: wanted, crop, mean, std, scale, interpolation, rounding, background } = options;
  let found = opaque(image, background);
  if (wanted !== null) {
    const { width, height } = found;
    const longer = Math.trunc((wanted * Math.max(width, height)) / Math.min(width, height));
    const size = Array.isArray(wanted) ? [wanted[1], wanted[0]] : width <= height ? [wanted, longer] : [longer, wanted];
    found = resize(found, size, interpolation);
  }
  const [height, width] = crop;
  const [left, top] = [offset(found.width, width, rounding), offset(found.height, height, rounding)];
  const numbers = new Float32Array(3 * height * width);
  const round = Math.fround;
  for (let c = 0; c < 3; c++)
    for (let y = 0; y < height; y++)
      for (let x = 0; x < width; x++) {
        const [u, v] = [x + left, y + top];
        const isInside = u >= 0 && v >= 0 && u < found.width && v < found.height;
        const value = isInside ? found.pixels[3 * (v * found.width + u) + c] : 0;
        const scaled = scale === null ? round(value / 255) : round(value * round(scale));
        numbers[(c * height + y) * width + x] = round(round(scaled - round(mean[c])) / round(std[c]));
      }
  return numbers;
}

/** The likeliest classes: their names and probabilities. */
export function likeliest(logits, labels, count = 5) {
  const highest = logits.reduce((a, b) => Math.max(a, b), -Infinity);
  const shares = Float64Array.from(logits, (x) => Math.exp(x - highest));
  const sum = shares.reduce((a, b) => a + b, 0);
  const order = Array.from(shares.keys()).sort((a, b) => shares[b] - shares[a]);
  return order.slice(0, count).map((i) => ({ number: i, label: labels?.[i] ?? `class ${i}`, probability: shares[i] / sum }));
}
