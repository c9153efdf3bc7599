// Written by Mithril: @title@

/** A text, or its tokens. */
export type Prompt = string | number[] | Int32Array | Uint32Array;

export interface GenerateOptions {
  /** How many tokens are written at most (default 128). */
  maxTokens?: number;
  /** Divides the logits; 0, the default, takes the likeliest token. */
  temperature?: number;
  /** Only so many of the likeliest tokens may be drawn. */
  topK?: number;
  /** Only the likeliest tokens that together have this probability may be drawn. */
  topP?: number;
  /** Only tokens with at least this probability, relative to the likeliest, may be drawn. */
  minP?: number;
  /** Logits of tokens that the text holds are divided by it, if positive, or multiplied (default 1). */
  repetitionPenalty?: number;
  /** The same seed draws the same tokens. Default: another one each time. */
  seed?: number;
  /** The text ends after such a token. Default: those of the checkpoint. */
  stopTokens?: number[];
  /** The text ends before such a string. */
  stopStrings?: string[];
  /** Called for each token with the text that is complete now, which may be empty. */
  onToken?: (step: { token: number; text: string }) => void;
  /** Ends the text early, with the reason "aborted". */
  signal?: AbortSignal;
}

export interface Generated {
  /** What follows the prompt, without special tokens, up to a stop string; empty without a tokenizer. */
  text: string;
  /** The tokens, with the one that stopped it. */
  tokens: number[];
  /** Why it ended: a stop token or string; as many tokens as wanted; the longest text that the model reads; the signal. */
  finishReason: "stop" | "length" | "context" | "aborted";
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

export interface Decoder {
  readonly title: string;
  /** Largest number of tokens of a text. */
  readonly context: number;
  /** Number of tokens that the model knows. */
  readonly vocabulary: number;
  readonly hasTokenizer: boolean;
  /** How many threads it runs on. */
  readonly threads: number;
  /** Bytes of its memory. */
  readonly memoryBytes: number;
  /** Continues a text. A text that begins as the last one did is not read again from its beginning. */
  generate(prompt: Prompt, options?: GenerateOptions): Promise<Generated>;
  /** The logits of what follows a text. */
  logits(prompt: Prompt): Promise<Float32Array | Float64Array>;
  /** The tokens of a text. */
  encode(text: string): Promise<number[]>;
  /** The text of tokens, without the special ones. */
  decode(tokens: ArrayLike<number>): Promise<string>;
  /** Forgets the last text. */
  reset(): Promise<void>;
  /** Gives the memory back; ends the worker and the threads. */
  close(): Promise<void>;
}

/** What goes wrong with a model or with what it is given. */
export class ModelError extends Error {}

/** Loads the model from a folder: by default the one of this module. In Node.js it may be a path. */
export function load(url?: string | URL, options?: LoadOptions): Promise<Decoder>;

/** The same in a worker, so that the page stays responsive while text is generated. */
export function loadInWorker(url?: string | URL, options?: LoadOptions): Promise<Decoder>;
