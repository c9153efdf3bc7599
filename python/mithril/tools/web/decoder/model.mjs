// Written by Mithril: @title@
// Generates text with model.wasm and the weights in weights.bin, in browsers and in Node.js. model.d.ts describes it.

import { Held, TextStream, chooser, optionsOf } from "./generation.mjs";
import { isPage, start, threadsOf } from "./program.mjs";
import { ARRAYS, ModelError, aligned, fill, folderOf, messageOf, open, readAll, startWorker } from "./runtime.mjs";

export { ModelError };

const description = @description@;

// A chunk of a prompt takes about as long as this share of its tokens one by one: where fewer are left, they are.
const SHARE = 0.4;
const bytesOf = (port) => port.shape.reduce((n, size) => n * size, ARRAYS[port.dtype].BYTES_PER_ELEMENT);
// Lets the page and the worker answer what came in the meantime.
const pause = globalThis.setImmediate
  ? () => new Promise((done) => globalThis.setImmediate(done))
  : () =>
      new Promise((done) => {
        const { port1, port2 } = new MessageChannel();
        port1.onmessage = () => (port1.close(), done());
        port2.postMessage(0);
      });

// Numbers of a 16-bit dtype, from their bits.
function widened(dtype, array) {
  if (dtype === "bfloat16") return new Float32Array(Uint32Array.from(array, (bits) => bits << 16).buffer);
  if (dtype !== "float16") return array;
  return Float32Array.from(array, (bits) => {
    const exponent = (bits >> 10) & 31;
    const mantissa = bits & 1023;
    const sign = bits >> 15 ? -1 : 1;
    if (exponent === 31) return mantissa ? NaN : sign * Infinity;
    return sign * (exponent ? (1024 + mantissa) * 2 ** (exponent - 25) : mantissa * 2 ** -24);
  });
}

class Decoder {
  #program;
  #tokenizer;
  #weights;
  #places;
  // What the cache holds keys and values of, and how many of its first places are unused.
  #known = [];
  #padding = 0;
  #running = Promise.resolve();

  constructor(program) {
    this.#program = program;
    this.#reserve();
  }
  get title() {
    return description.title;
  }
  get context() {
    return description.context;
  }
  get vocabulary() {
    return description.vocabulary;
  }
  get hasTokenizer() {
    return description.hasTokenizer;
  }
  get memoryBytes() {
    return this.#memory().byteLength;
  }
  get threads() {
    return this.#program?.threads;
  }
  async encode(text) {
    return this.#encoded(text);
  }
  async decode(tokens) {
    return this.#decoded(Array.from(tokens, Number));
  }
  async logits(prompt) {
    const tokens = this.#prompt(prompt);
    return this.#inTurn(async () => this.#advance(tokens).slice());
  }
  async generate(prompt, settings) {
    const options = optionsOf(settings);
    const tokens = this.#prompt(prompt);
    return this.#inTurn(() => this.#generate(tokens, options));
  }
  async reset() {
    return this.#inTurn(async () => this.#forget());
  }
  async close() {
    const program = this.#program;
    this.#program = undefined;
    await program?.close();
  }
  // Where the file of weights goes, and the tokenizer. Not part of the interface.
  _target(at, bytes) {
    return new Uint8Array(this.#memory(), this.#weights + at, bytes);
  }
  _useTokenizer(tokenizer) {
    this.#tokenizer = tokenizer;
  }
  // What a worker is asked: functions are replaced by what reports to the page.
  answer(method, args, { onEvent, signal }) {
    if (method !== "generate") return undefined;
    const [prompt, options] = args;
    return this.generate(prompt, { ...options, onToken: onEvent, signal });
  }

  #inTurn(action) {
    const found = this.#running.then(action);
    this.#running = found.catch(() => undefined);
    return found;
  }
  #memory() {
    if (!this.#program) throw new ModelError("the model was closed");
    return this.#program.memory.buffer;
  }
  // Lays out the memory: weights, scratch memory, caches, data and logits, and the pointers of each program.
  #reserve() {
    const { inputs, outputs, programs } = description;
    this.#weights = this.#program.base;
    let end = this.#weights + aligned(description.weights.bytes);
    const take = (bytes) => {
      const at = end;
      end += aligned(bytes);
      return at;
    };
    const arena = take(Math.max(...programs.map(({ prefix }) => this.#program.call(`${prefix}_arena_bytes`, this.#program.threads))));
    const longest = Math.max(...programs.map(({ length }) => length));
    const from = inputs.map((port) => {
      if (port.use === "weight") return port.offset === null ? 0 : this.#weights + port.offset;
      return take(bytesOf(port) * (port.use === "tokens" ? longest : 1));
    });
    const to = outputs.map((port) => (port.cache === null ? take(bytesOf(port) * longest) : from[port.cache]));
    const [given, made] = [take(4 * (from.length + 1)), take(4 * (to.length + 1))];
    this.#program.reserve(end);
    new Uint32Array(this.#memory(), given, from.length).set(from);
    new Uint32Array(this.#memory(), made, to.length).set(to);
    this.#places = { arena, from, to, given, made };
  }
  #forget() {
    this.#known = [];
    this.#padding = 0;
  }
  #put(use, values) {
    const number = description.inputs.findIndex((port) => port.use === use);
    const kind = ARRAYS[description.inputs[number].dtype];
    const isBig = kind === BigInt64Array || kind === BigUint64Array;
    new kind(this.#memory(), this.#places.from[number], values.length).set(isBig ? values.map(BigInt) : values);
  }
  // Runs the program of as many tokens, whose keys and values go to a place of the cache; the last logits.
  #run(program, tokens, place) {
    this.#put("tokens", tokens);
    this.#put("position", [place]);
    this.#put("padding", [this.#padding]);
    const { arena, given, made, to } = this.#places;
    const packed = description.weights.isPacked ? this.#weights + 64 : 0;
    const code = this.#program.call(`${program.prefix}_run`, given, made, packed, arena, this.#program.pool);
    if (code !== 0) {
      this.#forget();
      throw new ModelError(messageOf(this.#memory(), this.#program.call(`${program.prefix}_error`, code)));
    }
    const number = description.outputs.findIndex((port) => port.name === "output");
    const { dtype, rows } = description.outputs[number];
    const kind = ARRAYS[dtype];
    const before = (rows === "last" ? 0 : tokens.length - 1) * description.vocabulary * kind.BYTES_PER_ELEMENT;
    return widened(dtype, new kind(this.#memory(), to[number] + before, description.vocabulary));
  }
  // Brings the cache to hold these tokens; the logits of what follows.
  #advance(tokens) {
    const [one, chunk] = description.programs;
    const length = chunk?.length ?? 1;
    const most = Math.min(this.#known.length, tokens.length - 1);
    let at = 0;
    while (at < most && this.#known[at] === tokens[at]) at++;
    if (at === 0) {
      // A rest that is worth a chunk of its own makes the first one shorter.
      const rest = tokens.length % length;
      this.#padding = rest > SHARE * length ? length - rest : 0;
    }
    this.#known.length = at;
    let logits;
    while (at < tokens.length) {
      const unused = at === 0 ? this.#padding : 0;
      const isChunk = length > 1 && tokens.length - at + unused >= length;
      const next = tokens.slice(at, at + (isChunk ? length - unused : 1));
      const program = isChunk ? chunk : one;
      logits = this.#run(program, isChunk ? [...Array(unused).fill(0), ...next] : next, at === 0 ? 0 : this.#padding + at);
      this.#known.push(...next);
      at += next.length;
    }
    return logits;
  }
  #encoded(text) {
    if (!this.#tokenizer) throw new ModelError("the model was exported without a tokenizer: give tokens");
    if (typeof text !== "string") throw new ModelError(`the text is a ${typeof text}: give a string`);
    return this.#tokenizer.encode(text).ids;
  }
  #decoded(tokens) {
    if (!this.#tokenizer) throw new ModelError("the model was exported without a tokenizer");
    const known = tokens.filter((token) => this.#tokenizer.id_to_token(token) !== undefined);
    if (known.length === 0) return "";
    return this.#tokenizer.decode(known, { skip_special_tokens: true, clean_up_tokenization_spaces: false });
  }
  // The tokens of a prompt, checked.
  #prompt(prompt) {
    this.#memory();
    const isList = Array.isArray(prompt) || ArrayBuffer.isView(prompt);
    if (typeof prompt !== "string" && !isList) throw new ModelError(`the prompt is a ${typeof prompt}: give text, or a list of tokens`);
    let tokens = typeof prompt === "string" ? this.#encoded(prompt) : Array.from(prompt, Number);
    const { context, vocabulary, startToken } = description;
    if (tokens.length === 0) {
      if (startToken === null) throw new ModelError("the prompt is empty, and the model has no token that begins a text");
      tokens = [startToken];
    }
    const wrong = tokens.find((token) => !Number.isInteger(token) || token < 0 || token >= vocabulary);
    if (wrong !== undefined) throw new ModelError(`the prompt holds the token ${wrong}; the model knows 0 to ${vocabulary - 1}`);
    if (tokens.length > context)
      throw new ModelError(`the prompt has ${tokens.length} tokens, and the model reads at most ${context}: shorten it`);
    return tokens;
  }
  async #generate(prompt, options) {
    const { maxTokens, stopTokens = description.stopTokens, stopStrings, onToken, signal } = options;
    const choose = chooser(options);
    const stream = this.#tokenizer && new TextStream((tokens) => this.#decoded(tokens), prompt);
    const held = new Held(stopStrings);
    const seen = [...prompt];
    const tokens = [];
    let text = "";
    let finishReason = null;
    while (finishReason === null) {
      if (signal?.aborted) {
        finishReason = "aborted";
        break;
      }
      const logits = this.#advance(seen);
      const token = choose(logits, seen);
      if (!Number.isFinite(logits[token])) throw new ModelError("the logits of the model are not finite: check the weights");
      seen.push(token);
      tokens.push(token);
      if (stopTokens.includes(token)) finishReason = "stop";
      else if (tokens.length === maxTokens) finishReason = "length";
      else if (seen.length > description.context) finishReason = "context";
      let piece = stream && !stopTokens.includes(token) ? held.push(stream.push(token)) : "";
      if (stream && !held.isFound && finishReason !== null) piece += held.push(stream.end()) + held.end();
      if (held.isFound) finishReason = "stop";
      text += piece;
      onToken?.({ token, text: piece });
      await pause();
    }
    return { text, tokens, finishReason };
  }
}

// Bytes that are tokens, as Python's tokenizers read them: a run of them is valid as a whole, or none of it is.
function decodeBytes(tokens) {
  const found = [];
  let run = [];
  const finish = () => {
    if (!run.length) return;
    try {
      found.push(new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(Uint8Array.from(run)));
    } catch {
      found.push("\ufffd".repeat(run.length));
    }
    run = [];
  };
  for (const token of tokens) {
    const byte = /^<0x([0-9A-Fa-f]{2})>$/.exec(token);
    if (byte) run.push(parseInt(byte[1], 16));
    else {
      finish();
      found.push(token);
    }
  }
  finish();
  return found;
}

/** Loads the model, and its tokenizer. */
export async function load(url, options = {}) {
  const threads = await threadsOf(options.threads, description.code);
  if (threads > 1 && isPage()) return loadInWorker(url, options);
  const folder = await folderOf(url);
  const program = await start(folder, description.code, threads);
  try {
    const model = new Decoder(program);
    if (description.hasTokenizer) model._useTokenizer(await loadTokenizer(folder));
    const filled = fill(folder, description.weights, (at, bytes) => model._target(at, bytes), options);
    await Promise.all([filled, program.ready]);
    return model;
  } catch (error) {
    await program.close();
    throw error;
  }
}

async function loadTokenizer(folder) {
  const { ByteFallbackDecoder, Tokenizer } = await import("./tokenizers.mjs");
  const bytes = await readAll(await open(new URL("tokenizer.json", folder)));
  const tokenizer = new Tokenizer(JSON.parse(new TextDecoder().decode(bytes)), {});
  for (const step of [tokenizer.decoder, ...(tokenizer.decoder?.decoders ?? [])])
    if (step instanceof ByteFallbackDecoder) step.decode_chain = decodeBytes;
  return tokenizer;
}

/** Loads the model in a worker, so that the page stays responsive; the interface is the same. */
export async function loadInWorker(url, options = {}) {
  const { about, call, close } = await startWorker(url, options);
  const generate = async (prompt, settings = {}) => {
    const { onToken, signal, ...others } = optionsOf(settings);
    // Checked here, where what is wrong is said at once; what was not given is not sent.
    const sent = Object.fromEntries(Object.entries(others).filter(([, value]) => value !== undefined));
    return call("generate", [prompt, sent], { onEvent: onToken, signal });
  };
  const methods = ["encode", "decode", "logits", "reset"];
  return { ...about, generate, ...Object.fromEntries(methods.map((name) => [name, (...args) => call(name, args)])), close };
}
