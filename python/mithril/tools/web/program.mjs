// Written by Mithril. The code of a model with its memory, and its threads: workers that share both.

import { IS_NODE, ModelError, aligned, open, readAll } from "./runtime.mjs";

const PAGE = 65536;
const STACK = 1 << 20;
const MOST_PAGES = 65535; // as the code says: 4 GiB less one page

// Whether memory can be shared here: in pages that are cross-origin isolated, and in Node.js.
function canShare() {
  if (typeof SharedArrayBuffer === "undefined" || typeof Atomics === "undefined") return false;
  if (IS_NODE) return true;
  return globalThis.crossOriginIsolated === true && typeof Worker !== "undefined";
}

// One thread for each core; of many processors, two usually share a core, or half of them are slow ones.
async function defaultThreads() {
  const os = IS_NODE && (await import(/* @vite-ignore */ /* webpackIgnore: true */ "node:os"));
  const processors = os ? (os.availableParallelism?.() ?? os.cpus().length) : (globalThis.navigator?.hardwareConcurrency ?? 1);
  return processors <= 2 ? processors : Math.min(8, Math.ceil(processors / 2));
}

/** The number of threads that a model runs on: what is asked for, or 1 where memory cannot be shared. */
export async function threadsOf(asked = "auto", code) {
  if (asked !== "auto" && !(Number.isInteger(asked) && asked >= 1))
    throw new ModelError(`threads is ${typeof asked === "string" ? JSON.stringify(asked) : asked}; give "auto" or a positive integer`);
  if (asked === 1 || !code.threads || !canShare()) return 1;
  return asked === "auto" ? defaultThreads() : asked;
}

/** Whether this is the thread of a page, which may not wait for others. */
export const isPage = () => !IS_NODE && typeof globalThis.document !== "undefined";

/** Starts the code of a model in `folder`; its threads are there once `ready` resolves. */
export async function start(folder, code, threads) {
  if (threads === 1) {
    const module = await compiled(new URL("model.wasm", folder));
    const { exports } = await WebAssembly.instantiate(module, {});
    return new Program(exports, exports.memory);
  }
  const module = await compiled(new URL("model-threads.wasm", folder));
  const memory = sharedMemory(code.threads.pages);
  const { exports } = await WebAssembly.instantiate(module, { env: { memory } });
  const program = new Program(exports, memory, threads);
  program.ready = program.startWorkers(module);
  program.ready.catch(() => undefined);
  return program;
}

class Program {
  exports;
  memory;
  threads;
  /** Where the memory begins that the model may use, behind the stacks of the threads. */
  base;
  /** The address of the thread pool; 0: the calling thread does all the work. */
  pool = 0;
  ready = Promise.resolve();
  #workers = [];
  #problem;

  constructor(exports, memory, threads = 1) {
    this.exports = exports;
    this.memory = memory;
    this.threads = threads;
    const first = aligned(Number(exports.__heap_base.value));
    this.base = first + (threads - 1) * STACK;
    if (threads === 1) return;
    this.reserve(this.base);
    this.pool = exports.mithril_threads(threads);
  }
  /** Makes the memory large enough for what ends at an address. */
  reserve(end) {
    const missing = end - this.memory.buffer.byteLength;
    if (missing <= 0) return;
    try {
      this.memory.grow(Math.ceil(missing / PAGE));
    } catch {
      throw new ModelError(`the model needs ${(end / 1e6).toFixed(1)} MB of memory, which this system does not give`);
    }
  }
  /** Calls a function of the code. After a trap its memory cannot be relied on, and it does not run again. */
  call(name, ...args) {
    if (this.#problem) throw new ModelError(this.#problem);
    try {
      return this.exports[name](...args);
    } catch (error) {
      const reason = this.#failure() || error.message;
      this.exports.mithril_fail?.();
      this.#fail(reason);
      this.close();
      throw new ModelError(this.#problem);
    }
  }
  // What a worker wrote about its failure.
  #failure() {
    if (this.threads === 1) return "";
    const bytes = new Uint8Array(this.memory.buffer, this.exports.mithril_failure(), 256).slice();
    return new TextDecoder().decode(bytes.subarray(0, bytes.indexOf(0)));
  }
  #fail(reason) {
    this.#problem ??= `the code of the model failed (${reason}): load the model again`;
  }
  async startWorkers(module) {
    const starting = [];
    for (let thread = 1; thread < this.threads; thread++) {
      const stack = this.base - (this.threads - 1 - thread) * STACK;
      starting.push(this.#start({ module, memory: this.memory, stack, thread }));
    }
    const failed = (await Promise.allSettled(starting)).find(({ status }) => status === "rejected");
    if (!failed) return;
    await this.#end();
    throw failed.reason;
  }
  // Starts a worker; resolves once it waits for work.
  async #start(message) {
    const nodeThreads = typeof Worker === "undefined" && IS_NODE && (await import(/* @vite-ignore */ /* webpackIgnore: true */ "node:worker_threads"));
    await new Promise((resolve, reject) => {
      // Before it is ready, and later.
      const fail = (reason = "it does not load") => {
        reject(new ModelError(`thread ${message.thread} of ${this.threads} does not start: ${reason}`));
        this.#fail(`thread ${message.thread}: ${reason}`);
      };
      const settle = ({ isReady, error }) => (isReady ? resolve() : fail(error));
      let worker;
      if (nodeThreads) {
        worker = new nodeThreads.Worker(new URL("./thread.mjs", import.meta.url));
        worker.on("message", (message) => (settle(message), worker.unref()));
        worker.on("error", (error) => fail(error.message));
        worker.on("exit", () => fail("it ended"));
      } else {
        worker = new Worker(new URL("./thread.mjs", import.meta.url), { type: "module" });
        worker.onmessage = (event) => settle(event.data);
        worker.onerror = (event) => fail(event.message);
      }
      this.#workers.push(worker);
      worker.postMessage(message);
    });
  }
  /** Ends the threads, once they have started: Node.js 20 may crash where a worker is ended before. */
  async close() {
    this.#problem ??= "the model was closed";
    await this.ready.catch(() => undefined);
    await this.#end();
  }
  async #end() {
    // Node.js ends where nothing but workers without a reference is left.
    await Promise.all(this.#workers.splice(0).map((worker) => (worker.ref?.(), worker.terminate())));
  }
}

async function compiled(url) {
  const bytes = await readAll(await open(url));
  try {
    return await WebAssembly.compile(bytes);
  } catch (error) {
    const text = "Chrome 91, Firefox 89, Safari 16.4 and Node.js 16.4 are the first that run it";
    throw new ModelError(`${url.pathname.split("/").pop()} does not start (${error.message}); it needs SIMD: ${text}`);
  }
}

// Memory that can be shared says at first how large it may become; not all systems set 4 GiB aside.
function sharedMemory(pages) {
  for (let maximum = MOST_PAGES; ; maximum >>= 1) {
    try {
      return new WebAssembly.Memory({ initial: pages, maximum, shared: true });
    } catch (error) {
      if (maximum >> 1 < pages) throw new ModelError(`no memory can be shared here (${error.message}): load with threads: 1`);
    }
  }
}
