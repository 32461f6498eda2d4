// Live numbers of the broker: one stream for the whole page; two minutes of points are kept.
//
// It is read with fetch, because an EventSource cannot send a key. When the stream ends or falls
// silent it is reopened, with growing delays; `state` always has its state.

import { get, path, send } from "./api.js";
import { pause } from "./dom.js";

const POINTS_MAX = 120;
const SILENCE_MS_MAX = 6_000; // the broker sends an event each second
const RETRY_MS_MIN = 500;
const RETRY_MS_MAX = 10_000;

const listeners = new Set();
let running = null;

/** The points of the last two minutes, oldest first, and "idle", "connecting", "live" or "reconnecting". */
export const live = { state: "idle", points: [] };

/** Call *listener* now and after every change, until *signal* aborts. */
export function watch(listener, signal) {
  listeners.add(listener);
  signal?.addEventListener("abort", () => listeners.delete(listener), { once: true });
  listener(live);
}

function tell(state = live.state) {
  live.state = state;
  for (const listener of listeners) listener(live);
}

/** Open the stream, unless it is open. */
export function startLive() {
  if (running) return;
  running = new AbortController();
  keepReading(running.signal);
}

/** Close the stream and drop its points: the next user may have another key. */
export function stopLive() {
  running?.abort();
  running = null;
  live.points = [];
  tell("idle");
}

async function keepReading(signal) {
  let retryMs = RETRY_MS_MIN;
  tell("connecting");
  while (!signal.aborted) {
    const heard = await readOnce(signal).catch(() => false);
    if (signal.aborted) return;
    tell("reconnecting");
    retryMs = heard ? RETRY_MS_MIN : Math.min(2 * retryMs, RETRY_MS_MAX);
    await pause(retryMs * (0.5 + Math.random() / 2), signal);
  }
}

/** Read one stream to its end; return whether any event arrived. */
async function readOnce(signal) {
  const silence = new AbortController();
  let timer = setTimeout(() => silence.abort(), SILENCE_MS_MAX);
  const stop = AbortSignal.any([signal, silence.signal]);
  let heard = false;
  try {
    const response = await send(path("events"), { signal: stop, headers: { Accept: "text/event-stream" } });
    if (response.status === 401) await get(path("session")); // this reports that the key is no longer valid
    if (!response.ok) return false;
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    const take = parser((event, data) => {
      heard = true;
      receive(event, data);
    });
    for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
      clearTimeout(timer);
      timer = setTimeout(() => silence.abort(), SILENCE_MS_MAX);
      take(piece.value);
    }
    return heard;
  } catch {
    return heard;
  } finally {
    clearTimeout(timer);
  }
}

/** Return a function that takes text, cut anywhere, and calls *emit* for each event in it. */
export function parser(emit) {
  let rest = "";
  let event = "message";
  let data = [];
  return (text) => {
    const lines = (rest + text).split(/\r\n|\n|\r(?!$)/);
    rest = lines.pop();
    for (const line of lines) {
      if (line === "") {
        if (data.length) emit(event, data.join("\n"));
        event = "message";
        data = [];
      } else if (line.startsWith("event:")) event = line.slice(6).trim();
      else if (line.startsWith("data:")) data.push(line.slice(5).trim());
    }
  };
}

function receive(event, data) {
  if (event === "history") live.points = JSON.parse(data).slice(-POINTS_MAX);
  else if (event === "numbers") live.points = [...live.points, JSON.parse(data)].slice(-POINTS_MAX);
  else return;
  tell("live");
}

/** Return the newest point, or null. */
export function newest() {
  return live.points.at(-1) ?? null;
}

/** Return the sum of a per-strand count. */
export function total(byStrand) {
  return Object.values(byStrand ?? {}).reduce((sum, n) => sum + (n ?? 0), 0);
}
