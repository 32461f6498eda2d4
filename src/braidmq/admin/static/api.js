// The HTTP API of the broker, and the key that opens it.
//
// Every failure is an ApiError with the broker's one-line reason. A 401 is also reported to the
// listener of `onRefused`, because the caller cannot fix it: the key is no longer valid.

import { exactly } from "./exact.js";
import { inAddress } from "./names.js";

const PLACE = "braidmq.key";
const SIGNED_OUT = "braidmq.signed-out";
const PATIENCE_MS = 30_000;
export const DEV_KEY = "dev-key";

/** An error from the broker or the network; `status` is 0 if there was no response. */
export class ApiError extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

let key = sessionStorage.getItem(PLACE);
let refused = () => {};

/** Call *listener* when the broker no longer accepts the key. */
export function onRefused(listener) {
  refused = listener;
}

/** Keep *newKey* until the tab is closed; null forgets the current key. */
export function keepKey(newKey) {
  key = newKey;
  if (newKey === null) {
    sessionStorage.removeItem(PLACE);
    sessionStorage.setItem(SIGNED_OUT, "yes"); // else a development broker would sign in again
  } else {
    sessionStorage.setItem(PLACE, newKey);
    sessionStorage.removeItem(SIGNED_OUT);
  }
}

/** Return whether there is a key, and whether the user has signed out in this tab. */
export function keyState() {
  return { present: key !== null, signedOut: sessionStorage.getItem(SIGNED_OUT) !== null };
}

/** Return a path of the API: `path("topics", name, "messages")`. */
export function path(...parts) {
  return `/api/${parts.map(inPath).join("/")}`;
}

// The browser removes the parts `.` and `..`, encoded or not; %FF occurs in no name.
function inPath(name) {
  return name === "." || name === ".." ? `%FF${name}` : inAddress(name);
}

/** Send a request with the key and return the Response, whatever its status. */
export function send(address, { headers = {}, trial, ...options } = {}) {
  const used = trial === undefined ? key : trial; // null: send none
  return fetch(address, {
    ...options,
    cache: "no-store",
    credentials: "omit",
    redirect: "error",
    headers: used === null ? headers : { ...headers, Authorization: `Bearer ${used}` },
  });
}

/** GET: return the parsed answer. Empty values of *query* are not sent; *exact* keeps payloads verbatim. */
export function get(address, { query = {}, signal, exact = false, trial } = {}) {
  const wanted = Object.entries(query).filter(([, value]) => value !== "" && value != null);
  const search = new URLSearchParams(wanted.map(([name, value]) => [name, String(value)]));
  return answer(wanted.length ? `${address}?${search}` : address, { trial, signal }, exact ? exactly : JSON.parse);
}

/** GET: return the answer as text. */
export function getText(address) {
  return answer(address, {}, (text) => text);
}

/** POST *body*; *long* disables the timeout, for work that may take minutes. */
export function post(address, body, { long = false } = {}) {
  const headers = { "Content-Type": "application/json" };
  return answer(address, { method: "POST", headers, body: JSON.stringify(body ?? {}), long });
}

/** DELETE; *long* as above. */
export function remove(address, { long = false } = {}) {
  return answer(address, { method: "DELETE", long });
}

async function answer(address, { long = false, ...options }, read = JSON.parse) {
  const patience = long ? null : AbortSignal.timeout(PATIENCE_MS);
  const signal = AbortSignal.any([options.signal, patience].filter(Boolean));
  let response;
  let text;
  try {
    response = await send(address, { ...options, signal });
    text = await response.text();
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new ApiError(0, patience?.aborted ? "the broker did not answer in time" : "the broker cannot be reached");
  }
  if (!response.ok) {
    const error = new ApiError(response.status, reason(text, response.status));
    if (response.status === 401 && options.trial === undefined) refused(error);
    throw error;
  }
  return read(text);
}

function reason(text, status) {
  try {
    const said = JSON.parse(text).error;
    if (typeof said === "string") return said;
  } catch {
    // Not a broker's answer: perhaps a proxy's.
  }
  return `the broker answered ${status}`;
}
