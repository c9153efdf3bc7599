// Written by Mithril. From logits to tokens to text: how the next token is chosen, and which text is complete.
import { ModelError, refuseUnknown } from "./runtime.mjs";

const whole = (value) => Number.isSafeInteger(value);
// Each option: what it is if it is not given, whether a value is allowed, and what to give.
const OPTIONS = {
  maxTokens: [128, (x) => whole(x) && x > 0, "a positive integer"],
  temperature: [0, (x) => x >= 0 && x < Infinity, "0 or more"],
  topK: [undefined, (x) => whole(x) && x > 0, "a positive integer"],
  topP: [undefined, (x) => x > 0 && x <= 1, "more than 0, and at most 1"],
  minP: [undefined, (x) => x >= 0 && x <= 1, "0 to 1"],
  repetitionPenalty: [1, (x) => x > 0 && x < Infinity, "more than 0"],
  seed: [undefined, (x) => whole(x) && x >= 0, "an integer from 0"],
  stopTokens: [undefined, (x) => Array.isArray(x) && x.every(whole), "a list of tokens"],
  stopStrings: [[], (x) => Array.isArray(x) && x.every((s) => typeof s === "string" && s), "a list of strings that are not empty"],
  onToken: [undefined, (x) => typeof x === "function", "a function"],
  signal: [undefined, (x) => typeof x?.aborted === "boolean", "an AbortSignal"],
};

/** The options of `generate`, checked; those that were not given have their usual values. */
export function optionsOf(settings = {}) {
  refuseUnknown("option", settings, Object.keys(OPTIONS));
  const options = {};
  for (const [name, [usual, isAllowed, hint]] of Object.entries(OPTIONS)) {
    options[name] = settings[name] ?? usual;
    const isNumber = typeof options[name] === "number" || !["temperature", "topP", "minP", "repetitionPenalty"].includes(name);
    if (settings[name] !== undefined && settings[name] !== null && !(isNumber && isAllowed(options[name])))
      throw new ModelError(`${name} is ${String(settings[name])}: give ${hint}`);
  }
  const narrowing = ["topK", "topP", "minP"].find((name) => options[name] !== undefined);
  if (options.temperature === 0 && narrowing)
    throw new ModelError(`${narrowing} is given, but nothing is drawn with a temperature of 0: give a temperature, e.g. 1`);
  return options;
}

// Random numbers from 0 to below 1: xoshiro128++, whose state is drawn from the seed.
function randomNumbers(seed) {
  let at = seed >>> 0;
  const mixed = () => {
    at = (at + 0x9e3779b9) | 0;
    let z = Math.imul(at ^ (at >>> 16), 0x85ebca6b);
    z = Math.imul(z ^ (z >>> 13), 0xc2b2ae35);
    return z ^ (z >>> 16);
  };
  const s = Int32Array.from({ length: 4 }, mixed);
  s[1] ^= Math.floor(seed / 2 ** 32);
  const rotated = (x, k) => (x << k) | (x >>> (32 - k));
  const next = () => {
    const found = (rotated((s[0] + s[3]) | 0, 7) + s[0]) | 0;
    const t = s[1] << 9;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotated(s[3], 11);
    return found >>> 0;
  };
  return () => ((next() >>> 5) * 67108864 + (next() >>> 6)) / 2 ** 53;
}

function largest(scores) {
  let best = 0;
  for (let i = 1; i < scores.length; i++) if (scores[i] > scores[best]) best = i;
  return best;
}

function penalize(scores, seen, penalty) {
  for (const token of new Set(seen)) scores[token] *= scores[token] < 0 ? penalty : 1 / penalty;
}

// Leaves out all but the likeliest tokens that together have a probability.
function keepTopP(scores, topP) {
  const alive = [];
  for (let i = 0; i < scores.length; i++) if (scores[i] > -Infinity) alive.push(i);
  alive.sort((a, b) => scores[a] - scores[b]);
  const highest = scores[alive.at(-1)];
  const sum = alive.reduce((total, i) => total + Math.exp(scores[i] - highest), 0);
  let below = 0;
  for (const i of alive.slice(0, -1)) {
    below += Math.exp(scores[i] - highest) / sum;
    if (below > 1 - topP) break;
    scores[i] = -Infinity;
  }
}

/** Returns a function of logits and the tokens so far that chooses the next token. */
export function chooser({ temperature, topK, topP, minP, repetitionPenalty, seed }) {
  const random = randomNumbers(seed ?? Math.floor(Math.random() * 2 ** 53));
  return (logits, seen) => {
    if (temperature === 0 && repetitionPenalty === 1) return largest(logits);
    const scores = Float64Array.from(logits);
    if (repetitionPenalty !== 1) penalize(scores, seen, repetitionPenalty);
    if (temperature === 0) return largest(scores);
    for (let i = 0; i < scores.length; i++) scores[i] /= temperature;
    if (topK !== undefined && topK < scores.length) {
      const least = scores.slice().sort()[scores.length - topK];
      for (let i = 0; i < scores.length; i++) if (scores[i] < least) scores[i] = -Infinity;
    }
    if (topP !== undefined && topP < 1) keepTopP(scores, topP);
    const highest = scores[largest(scores)];
    const least = minP ? highest + Math.log(minP) : -Infinity;
    let sum = 0;
    for (let i = 0; i < scores.length; i++) {
      scores[i] = scores[i] < least ? 0 : Math.exp(scores[i] - highest);
      sum += scores[i];
    }
    let left = random() * sum;
    let last = 0;
    for (let i = 0; i < scores.length; i++) {
      if (scores[i] === 0) continue;
      last = i;
      left -= scores[i];
      if (left < 0) break;
    }
    return last;
  };
}

/** Makes text of tokens that come one by one; gives whole characters only. */
export class TextStream {
  #decode;
  #tokens = [];
  #from = 0;
  #to = 0;
  #known = "";
  #pending = [];

  constructor(decode, prompt) {
    this.#decode = decode;
    // The prompt decides about the space before what follows, and may end with half a character.
    for (const token of prompt) this.push(token);
    this.#pending = [];
  }
  push(token) {
    this.#tokens.push(token);
    this.#pending.push(token);
    const text = this.#decode(this.#tokens.slice(this.#from));
    if (text.length <= this.#known.length || text.endsWith("\ufffd")) return "";
    const piece = text.slice(this.#known.length);
    this.#from = this.#to;
    this.#to = this.#tokens.length;
    this.#known = this.#decode(this.#tokens.slice(this.#from));
    this.#pending = [];
    return piece;
  }
  // What is left: half a character is written as U+FFFD.
  end() {
    return this.#decode(this.#pending);
  }
}

/** Holds text back as long as it may be the beginning of a stop string. */
export class Held {
  #stops;
  #text = "";
  isFound = false;

  constructor(stops) {
    this.#stops = stops;
  }
  push(text) {
    if (this.isFound) return "";
    this.#text += text;
    const places = this.#stops.map((stop) => this.#text.indexOf(stop)).filter((place) => place >= 0);
    this.isFound = places.length > 0;
    const length = this.isFound ? Math.min(...places) : this.#text.length - this.#beginning();
    const piece = this.#text.slice(0, length);
    this.#text = this.#text.slice(length);
    return piece;
  }
  // The length of the longest end of the text that begins a stop string.
  #beginning() {
    const longest = Math.max(1, ...this.#stops.map((stop) => stop.length)) - 1;
    for (let length = Math.min(longest, this.#text.length); length > 0; length--)
      if (this.#stops.some((stop) => stop.startsWith(this.#text.slice(-length)))) return length;
    return 0;
  }
  end() {
    const piece = this.isFound ? "" : this.#text;
    this.#text = "";
    return piece;
  }
}
