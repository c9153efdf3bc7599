// Written by Mithril. One of the threads of a model: has the code and the memory of the others, and does parts of their
// calls until it is terminated. program.mjs starts it.

async function run({ module, memory, stack, thread }, post) {
  let code;
  try {
    code = (await WebAssembly.instantiate(module, { env: { memory } })).exports;
    code.__stack_pointer.value = stack;
    post({ isReady: true });
    code.mithril_thread(thread);
  } catch (error) {
    if (code) fail(code, memory, `thread ${thread}: ${error.message}`);
    post({ error: error.message });
  }
}

// Tells the thread that waits for this one; what failed first is the reason.
function fail(code, memory, text) {
  const place = new Uint8Array(memory.buffer, code.mithril_failure(), 256);
  if (place[0] === 0) place.set(new TextEncoder().encode(text).subarray(0, 255));
  code.mithril_fail();
}

if (typeof self !== "undefined" && typeof self.postMessage === "function") {
  self.onmessage = (event) => run(event.data, (message) => self.postMessage(message));
} else {
  const { parentPort } = await import(/* @vite-ignore */ /* webpackIgnore: true */ "node:worker_threads");
  parentPort.once("message", (message) => run(message, (answer) => parentPort.postMessage(answer)));
}
