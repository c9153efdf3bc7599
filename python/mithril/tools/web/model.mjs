// Written by Mithril: @title@
// Runs model.wasm on the weights in weights.bin, in browsers and in Node.js. model.d.ts describes the interface.

import { isPage, start, threadsOf } from "./program.mjs";
import { ARRAYS, ModelError, aligned, fill, folderOf, messageOf, refuseUnknown, startWorker } from "./runtime.mjs";

export { ARRAYS, ModelError };

const description = @description@;

// How many numbers there are; a size that is open counts as so many.
const count = (port, rows) => port.shape.reduce((n, size, axis) => n * (axis === 0 && port.rows ? port.rows * rows : size), 1);
const bytesOf = (port, rows) => count(port, rows) * ARRAYS[port.dtype].BYTES_PER_ELEMENT;
const shown = (port) => `[${port.shape.join(", ")}]`;
const visible = ({ name, dtype, shape, value }) => ({ name, dtype, shape, ...(value === undefined ? {} : { default: value }) });

// The value of an input as an array of its class, of any number of rows where that is open.
function checked(what, port, value) {
  const kind = ARRAYS[port.dtype];
  const expected = `${kind.name} for ${port.dtype} of shape ${shown(port)}`;
  if (value === undefined) throw new ModelError(`${what} "${port.name}" is missing: give a ${expected}`);
  const isNumber = ["number", "bigint", "boolean"].includes(typeof value);
  if (isNumber && !port.rows && count(port) === 1) {
    const isBig = kind === BigInt64Array || kind === BigUint64Array;
    if (port.dtype === "float16" || port.dtype === "bfloat16")
      throw new ModelError(`${what} "${port.name}" is a ${typeof value}; give a ${expected}, which holds the bits`);
    if ((isBig || !port.dtype.startsWith("float")) && typeof value === "number" && !Number.isInteger(value))
      throw new ModelError(`${what} "${port.name}" is ${value}; ${port.dtype} holds integers`);
    value = kind.of(isBig ? BigInt(value) : Number(value));
  }
  const isBits = port.dtype === "float16" && globalThis.Float16Array && value instanceof globalThis.Float16Array;
  if (isBits) value = new Uint16Array(value.buffer, value.byteOffset, value.length);
  const isClamped = kind === Uint8Array && value instanceof Uint8ClampedArray;
  if (!(value instanceof kind) && !isClamped) {
    const name = value === null ? "null" : (value.constructor?.name ?? typeof value);
    throw new ModelError(`${what} "${port.name}" is ${/^[AEIOU]/.test(name) ? "an" : "a"} ${name}; give a ${expected}`);
  }
  const one = count(port, 1);
  if (port.rows ? value.length === 0 || value.length % one : value.length !== one) {
    const numbers = port.rows ? `a multiple of ${one}` : one;
    throw new ModelError(`${what} "${port.name}" has ${value.length} elements, but shape ${shown(port)} has ${numbers}`);
  }
  if (port.dtype === "bool" && value.some((value) => value > 1))
    throw new ModelError(`${what} "${port.name}" holds numbers other than 0 and 1, but is bool`);
  return value;
}

class Model {
  #inputs = description.inputs;
  #results = description.outputs.filter((port) => port.replaces === null);
  #data = description.inputs.filter((port) => port.isData);
  #kept = description.inputs.filter((port) => port.offset !== null);
  #program;
  #weights;
  #place;
  #initial = new Map();

  constructor(program) {
    this.#program = program;
    this.#weights = program.base;
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
  get threads() {
    return this.#program?.threads;
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
    const ports = this.#kept.filter((port) => port.name in values);
    const arrays = ports.map((port) => checked("parameter or state", port, values[port.name]));
    ports.forEach((port, i) => this.#view(port, this.#weights + port.offset).set(arrays[i]));
  }
  async reset() {
    for (const [port, bytes] of this.#initial) {
      const view = new Uint8Array(this.#memory(), this.#weights + port.offset, bytesOf(port));
      if (bytes) view.set(bytes);
      else view.fill(0);
    }
  }
  async close() {
    const program = this.#program;
    this.#program = undefined;
    this.#initial.clear();
    await program?.close();
  }
  // Where the file of weights goes, and what is called once it is there. Not part of the interface.
  _fill() {
    const target = (at, bytes) => new Uint8Array(this.#memory(), this.#weights + at, bytes);
    const done = () => {
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
    if (!this.#program) throw new ModelError("the model was closed");
    return this.#program.memory.buffer;
  }
  #run(name, ...args) {
    return this.#program.call(`${description.prefix}_${name}`, ...args);
  }
  // Lays out the memory for so many rows: weights, scratch memory, data, outputs, pointers.
  #reserve(rows) {
    let end = this.#weights + aligned(description.weights.bytes);
    const take = (bytes) => {
      const at = end;
      end += aligned(bytes);
      return at;
    };
    const arena = take(this.#run(description.batch ? "batch_arena_bytes" : "arena_bytes", this.#program.threads));
    const places = new Map([...this.#data, ...this.#results].map((port) => [port, take(bytesOf(port, rows))]));
    const inputs = take(4 * (this.#inputs.length + 1));
    const outputs = take(4 * (description.outputs.length + 1));
    this.#program.reserve(end);
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
      const own = arrays[this.#data.indexOf(port)].length / count(port, 1);
      if (i > 0 && own !== rows)
        throw new ModelError(`input "${port.name}" has ${own} rows, but others have ${rows}`);
      rows = own;
    });
    if (rows !== this.#place.rows) this.#reserve(rows);
    const { arena, places, inputs, outputs } = this.#place;
    this.#data.forEach((port, i) => this.#view(port, places.get(port), rows).set(arrays[i]));
    const packed = description.weights.isPacked ? this.#weights + 64 : 0;
    const { pool } = this.#program;
    const code = description.batch
      ? this.#run("run_batch", inputs, outputs, BigInt(rows), packed, arena, pool)
      : this.#run("run", inputs, outputs, packed, arena, pool);
    if (code !== 0) throw new ModelError(messageOf(this.#memory(), this.#run("error", code)));
    return Object.fromEntries(this.#results.map((port) => [port.name, this.#view(port, places.get(port), rows).slice()]));
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

/** Loads the model. */
export async function load(url, options = {}) {
  const threads = await threadsOf(options.threads, description.code);
  if (threads > 1 && isPage()) return loadInWorker(url, options);
  const folder = await folderOf(url);
  const program = await start(folder, description.code, threads);
  try {
    const model = new Model(program);
    const { target, done } = model._fill();
    await Promise.all([fill(folder, description.weights, target, options), program.ready]);
    done();
    return model;
  } catch (error) {
    await program.close();
    throw error;
  }
}

/** Loads the model in a worker, so that the page stays responsive; the interface is the same. */
export async function loadInWorker(url, options = {}) {
  const { about, call, close } = await startWorker(url, options);
  const methods = ["run", "step", "parameters", "states", "assign", "reset"];
  return { ...about, ...Object.fromEntries(methods.map((name) => [name, (...args) => call(name, args)])), close };
}
