// Written by Mithril. Compares the text that the model generates, its logits and its tokens with recorded ones:
// `node check.mjs`, or `check(model)` in a page.
import { load } from "./model.mjs";

const recorded = @recorded@;

/** What was recorded: a prompt, the likeliest tokens after it, the logits of the first, texts and their tokens. */
export const example = recorded;

/** Whether the model reproduces what was recorded, and what it does not. */
export async function check(model) {
  const problems = [];
  await model.reset();
  const logits = await model.logits(recorded.prompt);
  let largest = 0;
  let scale = 0;
  const expected = recorded.logits;
  for (const value of expected) scale = Math.max(scale, Math.abs(value));
  // Some of the logits: a part of a large vocabulary says as much.
  expected.forEach((value, i) => (largest = Math.max(largest, Math.abs(value - logits[i]) / (scale || 1))));
  if (!(largest <= recorded.allowed)) problems.push(`logits differ by ${largest.toPrecision(3)}`);
  const { tokens } = await model.generate(recorded.prompt, { maxTokens: recorded.next.length, stopTokens: [] });
  const sure = recorded.next.slice(0, recorded.sure);
  if (!sure.every((token, i) => token === tokens[i])) problems.push(`generated ${tokens}, recorded ${recorded.next}`);
  for (const { text, tokens: known, decoded } of recorded.texts) {
    const tokens = await model.encode(text);
    if (String(tokens) !== String(known)) problems.push(`${JSON.stringify(text)} has the tokens ${tokens}, recorded ${known}`);
    const back = known.length ? await model.decode(known) : "";
    if (back !== decoded) problems.push(`tokens of ${JSON.stringify(text)} are ${JSON.stringify(back)}, recorded ${JSON.stringify(decoded)}`);
  }
  await model.reset();
  return { ok: problems.length === 0, largest, problems };
}

const isProgram = typeof process !== "undefined" && process.argv?.[1] && import.meta.url.endsWith("/check.mjs") &&
  /check\.mjs$/.test(process.argv[1]);
if (isProgram) {
  let ok = true;
  // The form for one thread is another file.
  for (const threads of new Set([1, Number(process.argv[2] ?? recorded.threads)])) {
    const start = performance.now();
    const model = await load(undefined, { threads });
    const loaded = performance.now();
    const { largest, problems } = await check(model);
    ok &&= problems.length === 0;
    const before = performance.now();
    await model.logits(recorded.prompt);
    const read = performance.now();
    const { tokens } = await model.generate(recorded.prompt, { maxTokens: recorded.next.length, stopTokens: [] });
    const time = (performance.now() - read) / tokens.length;
    console.log(model.threads === 1 ? "one thread" : `${model.threads} threads`);
    console.log(`output: largest error ${largest.toPrecision(3)}`);
    console.log(`loaded in ${(loaded - start).toFixed(1)} ms, ${recorded.prompt.length} tokens read in ${(read - before).toFixed(1)} ms, ` +
      `a token takes ${time.toFixed(3)} ms`);
    console.log(`memory: ${model.memoryBytes} bytes`);
    for (const problem of problems) console.log(problem);
    await model.close();
  }
  console.log(ok ? "ok" : "wrong");
  process.exitCode = ok ? 0 : 1;
}
