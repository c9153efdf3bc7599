// Written by Mithril: @title@

/** An array of numbers as the model keeps it. float16 and bfloat16 are the bits of the numbers. */
export type Tensor =
  | Float32Array | Float64Array
  | Int8Array | Int16Array | Int32Array | BigInt64Array
  | Uint8Array | Uint16Array | Uint32Array | BigUint64Array;

/** What a call is given. */
export interface Inputs {
@inputs@
}

/** What a call returns: arrays of their own, which later calls do not change. */
export interface Outputs {
@outputs@
}

/** An input or output. A size that a call chooses is a name. */
export interface Port {
  name: string;
  dtype: string;
  shape: (number | string)[];
  /** The value of an input that is left out. */
  default?: number;
}

export interface Progress {
  /** Bytes of weights that are there. */
  loaded: number;
  /** Bytes of all weights. */
  total: number;
  /** From 0 to 1. */
  fraction: number;
}

export interface LoadOptions {
  /** Called as the weights arrive. */
  onProgress?: (progress: Progress) => void;
  /** Whether the weights are kept in the browser's cache (default true). */
  cache?: boolean;
  /**
   * How many threads the model runs on: "auto", the default, is as many as suit the machine. Where memory cannot be
   * shared, as in pages that are not cross-origin isolated, it is one. In pages, more run in a worker.
   */
  threads?: number | "auto";
}

export interface Model {
  readonly inputs: Port[];
  readonly outputs: Port[];
  readonly title: string;
  /** Whether it is a training step: `step` instead of `run`. */
  readonly trains: boolean;
  /** How many threads it runs on. */
  readonly threads: number;
  /** Bytes of its memory. */
  readonly memoryBytes: number;
  /** Computes the outputs; states such as caches change. */
  run(inputs: Inputs): Promise<Outputs>;
  /** Computes the outputs and updates the parameters, for a model that was exported with an optimizer. */
  step(inputs: Inputs): Promise<Outputs>;
  /** Copies of the parameters by name; an error where they are packed. */
  parameters(): Promise<Record<string, Tensor>>;
  /** Copies of the states by name: caches, statistics, what an optimizer keeps. */
  states(): Promise<Record<string, Tensor>>;
  /** Sets parameters and states by name. */
  assign(values: Record<string, Tensor | number | bigint | boolean>): Promise<void>;
  /** Brings states, and parameters that are trained, back to what they were when the model was loaded. */
  reset(): Promise<void>;
  /** Gives the memory back; ends the worker and the threads. */
  close(): Promise<void>;
}

/** What goes wrong with a model or with what it is given. */
export class ModelError extends Error {}

/** The class of arrays for each dtype. */
export const ARRAYS: Record<string, { new (length: number): Tensor; readonly BYTES_PER_ELEMENT: number }>;

/** Loads the model from a folder: by default the one of this module. In Node.js it may be a path. */
export function load(url?: string | URL, options?: LoadOptions): Promise<Model>;

/** The same in a worker, so that the page stays responsive while the model runs. */
export function loadInWorker(url?: string | URL, options?: LoadOptions): Promise<Model>;
