// Written by Mithril. Runs the model beside the page: what loadInWorker of model.mjs talks to.
import { load } from "./model.mjs";

let model;
const running = new Map();

async function answer({ id, method, args, abort, isAborted }, post) {
  if (abort !== undefined) return running.get(abort)?.abort();
  try {
    if (method === "load") {
      const [url, options] = args;
      model = await load(url, { ...options, onProgress: (progress) => post({ progress }) });
      return post({ id, value: describe(model) });
    }
    running.set(id, new AbortController());
    if (isAborted) running.get(id).abort();
    const context = { onEvent: (event) => post({ id, event }), signal: running.get(id).signal };
    const value = await (model.answer?.(method, args, context) ?? model[method](...args));
    post({ id, value }, value ? Object.values(value).flatMap((array) => (ArrayBuffer.isView(array) ? [array.buffer] : [])) : []);
  } catch (error) {
    post({ id, error: error.message });
  } finally {
    running.delete(id);
  }
}

// What a model says about itself: its properties, which are getters.
function describe(model) {
  const names = Object.entries(Object.getOwnPropertyDescriptors(Object.getPrototypeOf(model))).filter(([, { get }]) => get);
  return Object.fromEntries(names.map(([name]) => [name, model[name]]));
}

if (typeof self !== "undefined" && typeof self.postMessage === "function") {
  self.onmessage = (event) => answer(event.data, (message, moved) => self.postMessage(message, moved));
} else {
  const { parentPort } = await import(/* @vite-ignore */ /* webpackIgnore: true */ "node:worker_threads");
  parentPort.on("message", (message) => answer(message, (answered, moved) => parentPort.postMessage(answered, moved)));
}
