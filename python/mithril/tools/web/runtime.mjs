// Written by Mithril. What all kinds of models share: errors, arrays, files, and the worker beside the page.

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
export const IS_NODE = typeof process !== "undefined" && Boolean(process.versions?.node);
export const aligned = (bytes) => Math.ceil(bytes / 64) * 64;

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

export function refuseUnknown(what, value, known) {
  if (value === null || typeof value !== "object" || ArrayBuffer.isView(value) || Array.isArray(value))
    throw new ModelError(`give ${what}s by name: { ${known[0] ?? "name"}: … }`);
  for (const name of Object.keys(value))
    if (!known.includes(name)) throw new ModelError(`there is no ${what} "${name}": ${suggestion(name, known)}`);
}

// The folder of the model: a URL, a path in Node.js, or where this file is.
export async function folderOf(url) {
  if (url === undefined || url === null) return new URL(".", import.meta.url);
  const isUrl = url instanceof URL || /^[a-z][a-z0-9+.-]+:/i.test(url);
  const text = String(url).replace(/\/*$/, "/");
  if (isUrl) return new URL(text);
  if (!IS_NODE) return new URL(text, globalThis.document?.baseURI ?? globalThis.location.href);
  const { pathToFileURL } = await import(/* @vite-ignore */ /* webpackIgnore: true */ "node:url");
  return new URL(pathToFileURL(text).href.replace(/\/*$/, "/"));
}

// A file as chunks of bytes; with a key it is kept in the browser's cache.
export async function open(url, key) {
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
    const response = await cache?.match(url).catch(() => undefined);
    if (response?.body) return chunks(response.body);
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

export async function readAll(stream) {
  const parts = [];
  for await (const chunk of stream) parts.push(chunk);
  return new Blob(parts).arrayBuffer();
}

/** Streams weights.bin to where `target(offset, bytes)` says; `weights` has its size, the bytes it starts with, its hash. */
export async function fill(folder, weights, target, { onProgress, cache = true }) {
  const total = weights.bytes;
  const report = (loaded) => onProgress?.({ loaded, total, fraction: loaded / total });
  let at = 0;
  report(at);
  for await (const chunk of await open(new URL("weights.bin", folder), cache ? weights.hash : undefined)) {
    if (at + chunk.length > total) throw new ModelError(`weights.bin has more than the ${total} bytes of this model`);
    target(at, chunk.length).set(chunk);
    at += chunk.length;
    report(at);
  }
  if (at !== total) throw new ModelError(`weights.bin ends after ${at} of ${total} bytes`);
  const head = Array.from(target(0, 16), (byte) => byte.toString(16).padStart(2, "0")).join("");
  if (head !== weights.head) throw new ModelError("weights.bin belongs to another export of the model");
}

/** The message of an error code. */
export function messageOf(memory, address) {
  const bytes = new Uint8Array(memory, address);
  return new TextDecoder().decode(bytes.slice(0, bytes.indexOf(0)));
}

/**
 * Starts worker.mjs, which loads the model beside it: what it says about itself, and a function that calls its methods.
 * Functions cannot be sent to it: `onEvent` is called with what a method reports, and `signal` aborts it.
 */
export async function startWorker(url, { onProgress, ...options }) {
  const waiting = new Map();
  const settle = (message) => {
    if (message.progress) return onProgress?.(message.progress);
    const { resolve, reject, onEvent, signal } = waiting.get(message.id) ?? {};
    if (message.event !== undefined) return signal?.aborted ? undefined : onEvent?.(message.event);
    waiting.delete(message.id);
    if (waiting.size === 0) worker?.unref?.();
    if (message.error !== undefined) reject?.(new ModelError(message.error));
    else resolve?.(message.value);
  };
  let problem;
  const fail = (error) => {
    problem ??= `the worker failed: ${error.message ?? "it does not load"}`;
    for (const { reject } of waiting.values()) reject(new ModelError(problem));
    waiting.clear();
  };
  let worker;
  if (typeof Worker === "undefined" && IS_NODE) {
    const threads = await import(/* @vite-ignore */ /* webpackIgnore: true */ "node:worker_threads");
    worker = new threads.Worker(new URL("./worker.mjs", import.meta.url));
    worker.on("message", settle);
    worker.on("error", fail);
    worker.on("exit", () => fail(new Error("it ended")));
  } else {
    worker = new Worker(new URL("./worker.mjs", import.meta.url), { type: "module" });
    worker.onmessage = (event) => settle(event.data);
    worker.onerror = fail;
  }
  let next = 0;
  const call = (method, args, { onEvent, signal } = {}) =>
    new Promise((resolve, reject) => {
      if (problem) return reject(new ModelError(problem));
      const id = next++;
      waiting.set(id, { resolve, reject, onEvent, signal });
      worker.ref?.();
      try {
        worker.postMessage({ id, method, args, isAborted: signal?.aborted });
      } catch (error) {
        waiting.delete(id);
        return reject(new ModelError(`the arguments cannot be sent to the worker: ${error.message}`));
      }
      const abort = () => worker.postMessage({ abort: id });
      if (!signal?.aborted) signal?.addEventListener("abort", abort, { once: true });
    });
  const close = async () => {
    problem = "the model was closed";
    fail();
    // Node.js ends where nothing but workers without a reference is left.
    worker.ref?.();
    await worker.terminate();
  };
  try {
    const about = await call("load", [(await folderOf(url)).href, options]);
    return { about, call, close };
  } catch (error) {
    await close();
    throw error;
  }
}
