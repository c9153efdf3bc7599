// Written by Mithril. Runs the model beside the page: what loadInWorker of model.mjs talks to.
import { load } from "./model.mjs";

let model;

async function answer({ id, method, given }, post) {
  try {
    if (method === "load") {
      const [url, options] = given;
      model = await load(url, { ...options, onProgress: (progress) => post({ progress }) });
      const { inputs, outputs, title, trains, memoryBytes } = model;
      return post({ id, value: { inputs, outputs, title, trains, memoryBytes } });
    }
    const value = await model[method](...given);
    post({ id, value }, value ? Object.values(value).map((array) => array.buffer) : []);
  } catch (error) {
    post({ id, error: error.message });
  }
}

if (typeof self !== "undefined" && typeof self.postMessage === "function") {
  self.onmessage = (event) => answer(event.data, (message, moved) => self.postMessage(message, moved));
} else {
  const { parentPort } = await import(/* @vite-ignore */ /* webpackIgnore: true */ "node:worker_threads");
  parentPort.on("message", (message) => answer(message, (found, moved) => parentPort.postMessage(found, moved)));
}
