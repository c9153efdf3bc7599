// Written by Mithril: @title@
// Runs model.wasm on the weights in weights.bin, in browsers and in Node.js. model.d.ts describes the interface.

const description = @description@;

/** An error about a model, or about what it was given. */
export class ModelError extends Error {
  name = "ModelError";
}

/** The class of arrays for each dtype. Those for float16 and bfloat16 hold the bits of the numbers. */
export const ARRAYS = {
  float32: Float32Array,
  float64: Float64Array,
  float16: Uint16Array,
  bfloat16: Uint16Array,
  int8: Int8Array,
  int16: Int16Array,
  int32: Int32Array,
  int64: BigInt64Array,
  uint8: Uint8Array,
  uint16: Uint16Array,
  uint32: Uint32Array,
  uint64: BigUint64Array,
  bool: Uint8Array,
};
const CACHE = "mithril";
const IS_NODE = typeof process !== "undefined" && Boolean(process.versions?.node);
const aligned = (bytes) => Math.ceil(bytes / 64) * 64;
const megabytes = (bytes) => `${(bytes / 1e6).toFixed(1)} MB`;
// How many numbers there are; a size that is open counts as so many.
const count = (port, rows) => port.shape.reduce((n, size, axis) => n * (axis === 0 && port.rows ? port.rows * rows : size), 1);
const bytesOf = (port, rows) => count(port, rows) * ARRAYS[port.dtype].BYTES_PER_ELEMENT;
const shown = (port) => `[${port.shape.join(", ")}]`;
const visible = ({ name, dtype, shape, value }) => ({ name, dtype, shape, ...(value === undefined ? {} : { default: value }) });

// Words to choose from, the nearest one first.
function suggestion(word, known) {
  const distance = (a, b) => {
    let row = Array.from({ length: b.length + 1 }, (_, i) => i);
    for (let i = 1; i <= a.length; i++) {
      const next = [i];
      for (let j = 1; j <= b.length; j++)
        next.push(Math.min(row[j] + 1, next[j - 1] + 1, row[j - 1] + (a[i - 1] === b[j - 1] ? 0 : 1)));
      row = next;
    }
    return row[b.length];
  };
  const ranked = known.map((name) => [distance(word.toLowerCase(), name.toLowerCase()), name]).sort((a, b) => a[0] - b[0]);
  const most = word.length < 4 ? 1 : Math.max(2, Math.floor(word.length / 4));
  if (ranked.length && ranked[0][0] <= most) return `did you mean "${ranked[0][1]}"?`;
  return known.length ? `available: ${known.slice(0, 20).join(", ")}${known.length > 20 ? ", …" : ""}` : "there are none";
}

function refuseUnknown(what, given, known) {
  if (given === null || typeof given !== "object" || ArrayBuffer.isView(given) || Array.isArray(given))
    throw new ModelError(`give ${what}s by name: { ${known[0] ?? "name"}: … }`);
  for (const name of Object.keys(given))
    if (!known.includes(name)) throw new ModelError(`there is no ${what} "${name}": ${suggestion(name, known)}`);
}

// What was given for an input, as an array of its class; of any number of rows where that is open.
function checked(what, port, given) {
  const kind = ARRAYS[port.dtype];
  const wanted = `${kind.name} for ${port.dtype} of shape ${shown(port)}`;
  if (given === undefined) throw new ModelError(`${what} "${port.name}" is missing: give a ${wanted}`);
  const isNumber = ["number", "bigint", "boolean"].includes(typeof given);
  if (isNumber && !port.rows && count(port) === 1) {
    const isBig = kind === BigInt64Array || kind === BigUint64Array;
    if (port.dtype === "float16" || port.dtype === "bfloat16")
      throw new ModelError(`${what} "${port.name}" is a ${typeof given}; give a ${wanted}, which holds the bits`);
    if ((isBig || !port.dtype.startsWith("float")) && typeof given === "number" && !Number.isInteger(given))
      throw new ModelError(`${what} "${port.name}" is ${given}; ${port.dtype} holds whole numbers`);
    given = kind.of(isBig ? BigInt(given) : Number(given));
  }
  const isBits = port.dtype === "float16" && globalThis.Float16Array && given instanceof globalThis.Float16Array;
  if (isBits) given = new Uint16Array(given.buffer, given.byteOffset, given.length);
  const isClamped = kind === Uint8Array && given instanceof Uint8ClampedArray;
  if (!(given instanceof kind) && !isClamped) {
    const name = given === null ? "null" : (given.constructor?.name ?? typeof given);
    throw new ModelError(`${what} "${port.name}" is ${/^[AEIOU]/.test(name) ? "an" : "a"} ${name}; give a ${wanted}`);
  }
  const one = count(port, 1);
  if (port.rows ? given.length === 0 || given.length % one : given.length !== one) {
    const numbers = port.rows ? `a multiple of ${one}` : one;
    throw new ModelError(`${what} "${port.name}" has ${given.length} elements, but shape ${shown(port)} has ${numbers}`);
  }
  if (port.dtype === "bool" && given.some((value) => value > 1))
    throw new ModelError(`${what} "${port.name}" holds numbers other than 0 and 1, but is bool`);
  return given;
}

class Model {
  #inputs = description.inputs;
  #results = description.outputs.filter((port) => port.replaces === null);
  #data = description.inputs.filter((port) => port.isData);
  #kept = description.inputs.filter((port) => port.offset !== null);
  #exports;
  #weights;
  #place;
  #initial = new Map();

  constructor(instance) {
    this.#exports = instance.exports;
    this.#weights = aligned(Number(instance.exports.__heap_base.value));
    this.#reserve(1);
  }
  get inputs() {
    return this.#data.map(visible);
  }
  get outputs() {
    return this.#results.map(visible);
  }
  get title() {
    return description.title;
  }
  get trains() {
    return description.trains;
  }
  get memoryBytes() {
    return this.#memory().byteLength;
  }
  async run(data) {
    if (description.trains) throw new ModelError("this model was exported as a training step: call step(…)");
    return this.#call(data);
  }
  async step(data) {
    if (!description.trains)
      throw new ModelError("this model does not train: export it with an optimizer, or call run(…)");
    return this.#call(data);
  }
  async parameters() {
    return this.#read((port) => port.isParameter, "parameter");
  }
  async states() {
    return this.#read((port) => !port.isParameter, "state");
  }
  async assign(values) {
    this.#memory();
    refuseUnknown("parameter or state", values, this.#kept.map((port) => port.name));
    const found = this.#kept.filter((port) => port.name in values);
    const arrays = found.map((port) => checked("parameter or state", port, values[port.name]));
    found.forEach((port, i) => this.#view(port, this.#weights + port.offset).set(arrays[i]));
  }
  async reset() {
    for (const [port, bytes] of this.#initial) {
      const view = new Uint8Array(this.#memory(), this.#weights + port.offset, bytesOf(port));
      if (bytes) view.set(bytes);
      else view.fill(0);
    }
  }
  async close() {
    this.#exports = undefined;
    this.#initial.clear();
  }
  // Where the file of weights goes, and what is called once it is there. Not part of the interface.
  _fill() {
    const target = (at, bytes) => new Uint8Array(this.#memory(), this.#weights + at, bytes);
    const done = () => {
      const head = Array.from(target(0, 16), (byte) => byte.toString(16).padStart(2, "0")).join("");
      if (head !== description.weights.head) throw new ModelError("weights.bin belongs to another export of the model");
      for (const { replaces } of description.outputs) {
        if (replaces === null) continue;
        const port = this.#inputs[replaces];
        const bytes = target(port.offset, bytesOf(port));
        this.#initial.set(port, bytes.some((byte) => byte !== 0) ? bytes.slice() : null);
      }
    };
    return { target, done };
  }

  #memory() {
    if (!this.#exports) throw new ModelError("the model was closed");
    return this.#exports.memory.buffer;
  }
  #function(name) {
    return this.#exports[`${description.prefix}_${name}`];
  }
  // Lays out the memory for so many rows: weights, scratch memory, data, outputs, pointers.
  #reserve(rows) {
    let end = this.#weights + aligned(description.weights.bytes);
    const take = (bytes) => {
      const at = end;
      end += aligned(bytes);
      return at;
    };
    const arena = take(this.#function(description.batch ? "batch_arena_bytes" : "arena_bytes")(1));
    const places = new Map([...this.#data, ...this.#results].map((port) => [port, take(bytesOf(port, rows))]));
    const inputs = take(4 * (this.#inputs.length + 1));
    const outputs = take(4 * (description.outputs.length + 1));
    const missing = end - this.#memory().byteLength;
    if (missing > 0) {
      try {
        this.#exports.memory.grow(Math.ceil(missing / 65536));
      } catch {
        throw new ModelError(`the model needs ${megabytes(end)} of memory, which this system does not give`);
      }
    }
    const pointers = new Uint32Array(this.#memory(), inputs, this.#inputs.length);
    this.#inputs.forEach((port, i) => {
      pointers[i] = port.isData ? places.get(port) : port.offset === null ? 0 : this.#weights + port.offset;
    });
    const targets = new Uint32Array(this.#memory(), outputs, description.outputs.length);
    description.outputs.forEach((port, i) => {
      targets[i] = port.replaces === null ? places.get(port) : pointers[port.replaces];
    });
    this.#place = { rows, arena, places, inputs, outputs };
  }
  #view(port, at, rows) {
    return new ARRAYS[port.dtype](this.#memory(), at, count(port, rows));
  }
  #call(data) {
    this.#memory();
    refuseUnknown("input", data, this.#data.map((port) => port.name));
    const arrays = this.#data.map((port) => checked("input", port, data[port.name] ?? port.value));
    let rows = 1;
    this.#data.filter((port) => port.rows).forEach((port, i) => {
      const found = arrays[this.#data.indexOf(port)].length / count(port, 1);
      if (i > 0 && found !== rows)
        throw new ModelError(`input "${port.name}" has ${found} rows, but others have ${rows}`);
      rows = found;
    });
    if (rows !== this.#place.rows) this.#reserve(rows);
    const { arena, places, inputs, outputs } = this.#place;
    this.#data.forEach((port, i) => this.#view(port, places.get(port), rows).set(arrays[i]));
    const packed = description.weights.isPacked ? this.#weights + 64 : 0;
    const code = description.batch
      ? this.#function("run_batch")(inputs, outputs, BigInt(rows), packed, arena, 0)
      : this.#function("run")(inputs, outputs, packed, arena, 0);
    if (code !== 0) throw new ModelError(this.#message(code));
    return Object.fromEntries(this.#results.map((port) => [port.name, this.#view(port, places.get(port), rows).slice()]));
  }
  #message(code) {
    const bytes = new Uint8Array(this.#memory(), this.#function("error")(code));
    return new TextDecoder().decode(bytes.slice(0, bytes.indexOf(0)));
  }
  #read(isWanted, what) {
    this.#memory();
    const packed = this.#inputs.find((port) => !port.isData && isWanted(port) && port.offset === null);
    if (packed)
      throw new ModelError(
        `${what} "${packed.name}" is packed in the order of the kernels: export a training step to read parameters`,
      );
    const ports = this.#kept.filter(isWanted);
    return Object.fromEntries(ports.map((port) => [port.name, this.#view(port, this.#weights + port.offset).slice()]));
  }
}

// The folder of the model: a URL, a path in Node.js, or where this file is.
async function folderOf(url) {
  if (url === undefined || url === null) return new URL(".", import.meta.url);
  const isUrl = url instanceof URL || /^[a-z][a-z0-9+.-]+:/i.test(url);
  const text = String(url).replace(/\/*$/, "/");
  if (isUrl) return new URL(text);
  if (!IS_NODE) return new URL(text, globalThis.document?.baseURI ?? globalThis.location.href);
  const { pathToFileURL } = await import(/* @vite-ignore */ /* webpackIgnore: true */ "node:url");
  return new URL(pathToFileURL(text).href.replace(/\/*$/, "/"));
}

// A file as chunks of bytes; with a key it is kept in the browser's cache.
async function open(url, key) {
  if (url.protocol === "file:" && IS_NODE) {
    const { open: openFile } = await import(/* @vite-ignore */ /* webpackIgnore: true */ "node:fs/promises");
    const file = await openFile(url).catch((error) => {
      throw new ModelError(`${url.pathname} cannot be read: ${error.message}`);
    });
    return file.createReadStream({ highWaterMark: 1 << 20 });
  }
  let cache;
  if (key) {
    url = new URL(url);
    url.searchParams.set("v", key);
    // Without HTTPS, or where storage is denied, there is none.
    cache = await globalThis.caches?.open(CACHE).catch(() => undefined);
    const found = await cache?.match(url).catch(() => undefined);
    if (found?.body) return chunks(found.body);
  }
  const response = await fetch(url).catch((error) => {
    throw new ModelError(`${url.href} cannot be loaded: ${error.message}`);
  });
  if (!response.ok || !response.body) throw new ModelError(`${url.href} cannot be loaded: status ${response.status}`);
  if (cache) keep(cache, url, response.clone());
  return chunks(response.body);
}

// Keeps a response in the cache, in the place of those of former exports. A full disk is no reason to fail.
async function keep(cache, url, response) {
  try {
    for (const old of await cache.keys()) {
      const known = new URL(old.url);
      if (known.origin === url.origin && known.pathname === url.pathname && known.href !== url.href) await cache.delete(old);
    }
    await cache.put(url, response);
  } catch {
    await response.body?.cancel().catch(() => undefined);
  }
}

async function* chunks(body) {
  const reader = body.getReader();
  for (let { done, value } = await reader.read(); !done; { done, value } = await reader.read()) yield value;
}

async function readAll(stream) {
  const parts = [];
  for await (const chunk of stream) parts.push(chunk);
  return new Blob(parts).arrayBuffer();
}

async function instantiate(url) {
  const code = await readAll(await open(url));
  try {
    return (await WebAssembly.instantiate(code, {})).instance;
  } catch (error) {
    const text = "Chrome 91, Firefox 89, Safari 16.4 and Node.js 16.4 are the first that run it";
    throw new ModelError(`model.wasm does not start (${error.message}); it needs SIMD: ${text}`);
  }
}

/** Loads the model. */
export async function load(url, { onProgress, cache = true } = {}) {
  const folder = await folderOf(url);
  const total = description.weights.bytes;
  const key = cache ? description.weights.hash : undefined;
  const model = new Model(await instantiate(new URL("model.wasm", folder)));
  const { target, done } = model._fill();
  const report = (loaded) => onProgress?.({ loaded, total, fraction: loaded / total });
  let at = 0;
  report(at);
  for await (const chunk of await open(new URL("weights.bin", folder), key)) {
    if (at + chunk.length > total) throw new ModelError(`weights.bin has more than the ${total} bytes of this model`);
    target(at, chunk.length).set(chunk);
    at += chunk.length;
    report(at);
  }
  if (at !== total) throw new ModelError(`weights.bin ends after ${at} of ${total} bytes`);
  done();
  return model;
}

/** Loads the model in a worker, so that the page stays responsive; the interface is the same. */
export async function loadInWorker(url, { onProgress, cache = true } = {}) {
  const waiting = new Map();
  const settle = (message) => {
    if (message.progress) return onProgress?.(message.progress);
    const { resolve, reject } = waiting.get(message.id) ?? {};
    waiting.delete(message.id);
    if (waiting.size === 0) worker?.unref?.();
    if (message.error !== undefined) reject?.(new ModelError(message.error));
    else resolve?.(message.value);
  };
  const fail = (error) => {
    for (const { reject } of waiting.values()) reject(new ModelError(`the worker failed: ${error.message ?? "it does not load"}`));
    waiting.clear();
  };
  let worker;
  if (typeof Worker === "undefined" && IS_NODE) {
    const threads = await import(/* @vite-ignore */ /* webpackIgnore: true */ "node:worker_threads");
    worker = new threads.Worker(new URL("./worker.mjs", import.meta.url));
    worker.on("message", settle);
    worker.on("error", fail);
  } else {
    worker = new Worker(new URL("./worker.mjs", import.meta.url), { type: "module" });
    worker.onmessage = (event) => settle(event.data);
    worker.onerror = fail;
  }
  let next = 0;
  let isClosed = false;
  const call = (method, ...given) =>
    new Promise((resolve, reject) => {
      if (isClosed) return reject(new ModelError("the model was closed"));
      const id = next++;
      waiting.set(id, { resolve, reject });
      worker.ref?.();
      try {
        worker.postMessage({ id, method, given });
      } catch (error) {
        waiting.delete(id);
        reject(new ModelError(`what was given cannot be sent to the worker: ${error.message}`));
      }
    });
  const close = async () => {
    isClosed = true;
    fail(new Error("the model was closed"));
    await worker.terminate();
  };
  let about;
  try {
    about = await call("load", (await folderOf(url)).href, { cache });
  } catch (error) {
    await close();
    throw error;
  }
  const methods = ["run", "step", "parameters", "states", "assign", "reset"];
  return { ...about, ...Object.fromEntries(methods.map((name) => [name, (...given) => call(name, ...given)])), close };
}
