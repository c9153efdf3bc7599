// Written by Mithril. Runs the model on recorded data and compares what it computes with recorded outputs:
// `node check.mjs`, or `check(model)` in a page.
import { ARRAYS, load } from "./model.mjs";

// `allowed` is the largest distance of an output, in parts of its largest number; integers have to be equal.
const recorded = @recorded@;

function half(bits) {
  const exponent = (bits >> 10) & 31;
  const mantissa = bits & 1023;
  const sign = bits >> 15 ? -1 : 1;
  if (exponent === 31) return mantissa ? NaN : sign * Infinity;
  return sign * (exponent ? (1024 + mantissa) * 2 ** (exponent - 25) : mantissa * 2 ** -24);
}

function numbers(dtype, array) {
  if (dtype === "float16") return Array.from(array, half);
  if (dtype === "bfloat16") return new Float32Array(Uint32Array.from(array, (bits) => bits << 16).buffer);
  return array;
}

function distance(dtype, actual, expected) {
  if (!dtype.includes("float")) return actual.every((value, i) => value === expected[i]) ? 0 : Infinity;
  [actual, expected] = [numbers(dtype, actual), numbers(dtype, expected)];
  let scale = 0;
  for (const value of expected) if (Number.isFinite(value)) scale = Math.max(scale, Math.abs(value));
  let largest = 0;
  expected.forEach((value, i) => {
    if (Object.is(value, actual[i]) || value === actual[i]) return;
    const error = Math.abs(value - actual[i]) / (scale || 1);
    if (!(error <= largest)) largest = Number.isNaN(error) ? Infinity : error;
  });
  return largest;
}

// The recorded data and outputs by name.
export async function example() {
  const url = new URL("./check.bin", import.meta.url);
  let buffer;
  if (url.protocol === "file:") {
    const { readFile } = await import(/* @vite-ignore */ /* webpackIgnore: true */ "node:fs/promises");
    buffer = Uint8Array.from(await readFile(url)).buffer;
  } else {
    buffer = await (await fetch(url)).arrayBuffer();
  }
  let at = 0;
  const read = ({ name, dtype, count }) => {
    const kind = ARRAYS[dtype];
    const array = new kind(buffer.slice(at, at + count * kind.BYTES_PER_ELEMENT));
    at += array.byteLength;
    return [name, array];
  };
  return { data: Object.fromEntries(recorded.data.map(read)), outputs: Object.fromEntries(recorded.outputs.map(read)) };
}

// The errors by the name of the output, and whether they are small enough. States are as they were at first afterwards.
export async function check(model) {
  const { data, outputs } = await example();
  await model.reset();
  let actual;
  for (let call = 0; call < recorded.calls; call++) actual = await (model.trains ? model.step(data) : model.run(data));
  await model.reset();
  const errors = {};
  let ok = true;
  for (const { name, dtype, allowed } of recorded.outputs) {
    errors[name] = distance(dtype, actual[name], outputs[name]);
    ok &&= errors[name] <= allowed;
  }
  return { ok, errors };
}

const isProgram = typeof process !== "undefined" && process.argv?.[1] && import.meta.url.endsWith("/check.mjs") &&
  /check\.mjs$/.test(process.argv[1]);
if (isProgram) {
  let ok = true;
  // The largest number is that of the check; the form for one thread is another file.
  for (const threads of new Set([1, Number(process.argv[2] ?? recorded.threads)])) {
    const start = performance.now();
    const model = await load(undefined, { threads });
    const loaded = performance.now();
    const result = await check(model);
    ok &&= result.ok;
    const { data } = await example();
    const call = () => (model.trains ? model.step(data) : model.run(data));
    const times = [];
    for (let i = 0, end = performance.now() + 300; i < 3 || (performance.now() < end && i < 100); i++) {
      const before = performance.now();
      await call();
      times.push(performance.now() - before);
    }
    times.sort((a, b) => a - b);
    console.log(model.threads === 1 ? "one thread" : `${model.threads} threads`);
    for (const [name, error] of Object.entries(result.errors)) console.log(`${name}: largest error ${error.toPrecision(3)}`);
    console.log(`loaded in ${(loaded - start).toFixed(1)} ms, a call takes ${times[times.length >> 1].toFixed(3)} ms`);
    console.log(`memory: ${model.memoryBytes} bytes`);
    await model.close();
  }
  console.log(ok ? "ok" : "wrong");
  process.exitCode = ok ? 0 : 1;
}
