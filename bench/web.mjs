// One model in the browser's runtimes, in Node.js: ours and ONNX Runtime Web in turns, or one of them from its start to its
// first result. `node web.mjs FOLDER turns|ours|theirs THREADS`; FOLDER is what bench.web wrote.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [folder, what, threads, modules] = process.argv.slice(2);
const at = (path) => pathToFileURL(`${folder}/${path}`);
const { data, decodes, tokens } = JSON.parse(readFileSync(at("bench.json")));
const KINDS = { float32: Float32Array, int64: BigInt64Array };

function arrays() {
  return data.map(({ file, dtype, shape }) => {
    const bytes = readFileSync(at(file));
    return { dtype, shape, array: new KINDS[dtype](bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length)) };
  });
}

async function ours() {
  const { load } = await import(at("ours/model.mjs"));
  const model = await load(undefined, { threads: Number(threads) });
  if (model.threads !== Number(threads)) throw new Error(`the model runs on ${model.threads} threads`);
  if (decodes) {
    // Each call writes one more token of a text whose beginning is known.
    return async () => model.logits([...tokens, (calls = (calls + 1) % 100)]);
  }
  const given = Object.fromEntries(model.inputs.map(({ name }, i) => [name, arrays()[i].array]));
  return async () => Object.values(await model.run(given))[0];
}
let calls = 0;

async function theirs() {
  const ort = await import(pathToFileURL(`${modules}/node_modules/onnxruntime-web/dist/ort.node.min.mjs`));
  ort.env.wasm.numThreads = Number(threads);
  ort.env.logLevel = "error";
  const options = { executionProviders: ["wasm"], graphOptimizationLevel: "all" };
  const session = await ort.InferenceSession.create(readFileSync(at("model.onnx")), options);
  const given = {};
  arrays().forEach(({ dtype, shape, array }, i) => (given[session.inputNames[i]] = new ort.Tensor(dtype, array, shape)));
  return async () => (await session.run(given))[session.outputNames[0]].data;
}

if (what === "turns") {
  const runs = [await ours(), await theirs()];
  const [a, b] = [await runs[0](), await runs[1]()];
  let distance = 0;
  let scale = 0;
  if (!decodes)
    b.forEach((x, i) => {
      scale = Math.max(scale, Math.abs(x));
      distance = Math.max(distance, Math.abs(x - a[i]));
    });
  const times = [[], []];
  for (const end = performance.now() + 8000; times[0].length < 5 || (performance.now() < end && times[0].length < 60); )
    for (const [i, run] of runs.entries()) {
      const start = performance.now();
      await run();
      times[i].push(performance.now() - start);
    }
  console.log(JSON.stringify({ times: times.map((some) => Math.min(...some)), distance: decodes ? 0 : distance / scale, calls: times[0].length }));
} else {
  const start = performance.now();
  await (await { ours, theirs }[what]())();
  console.log(JSON.stringify({ first: performance.now() - start }));
}
process.exit(0);
