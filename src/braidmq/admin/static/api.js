// The HTTP API of the broker, and the key that opens it.
//
// Every refusal is an ApiError with the one line that the broker said. A 401 is also told to
// `onRefused`, because the caller cannot fix it: the key is no longer valid.

import { exactly } from "./exact.js";
import { inAddress } from "./names.js";

const PLACE = "braidmq.key";
const SIGNED_OUT = "braidmq.signed-out";
const PATIENCE_MS = 30_000;
export const DEV_KEY = "dev-key";

/** What the broker, or the network, answered instead of what was asked for. */
export class ApiError extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

let key = sessionStorage.getItem(PLACE);
let refused = () => {};

/** Call *listener* when a key that was good is so no more. */
export function onRefused(listener) {
  refused = listener;
}

/** Keep *newKey* until the tab is closed, or forget the one there is (null). */
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

/** Return the address of something: `path("topics", name, "messages")`. */
export function path(...parts) {
  return `/api/${parts.map(inPath).join("/")}`;
}

// A part that is `.` or `..`, encoded or not, is taken away by the browser; %FF is in no name.
function inPath(name) {
  return name === "." || name === ".." ? `%FF${name}` : inAddress(name);
}

/** Send a request with the key and return the Response, whatever its status. */
export function send(address, { headers = {}, trial, ...options } = {}) {
  const used = trial === undefined ? key : trial; // null: without any
  return fetch(address, {
    ...options,
    cache: "no-store",
    credentials: "omit",
    redirect: "error",
    headers: used === null ? headers : { ...headers, Authorization: `Bearer ${used}` },
  });
}

/** Look: return what the API answers. *query* is without what is empty; *exact* keeps payloads. */
export function get(address, { query = {}, signal, exact = false, trial } = {}) {
  const wanted = Object.entries(query).filter(([, value]) => value !== "" && value != null);
  const search = new URLSearchParams(wanted.map(([name, value]) => [name, String(value)]));
  return answer(wanted.length ? `${address}?${search}` : address, { trial, signal }, exact ? exactly : JSON.parse);
}

/** Look: return the answer as the text that it is. */
export function getText(address) {
  return answer(address, {}, (text) => text);
}

/** Change something; *long* is for work that the broker goes on with however long it takes. */
export function post(address, body, { long = false } = {}) {
  const headers = { "Content-Type": "application/json" };
  return answer(address, { method: "POST", headers, body: JSON.stringify(body ?? {}), long });
}

/** Remove something; *long* as above. */
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
    // Not ours: a proxy between us, perhaps.
  }
  return `the broker answered ${status}`;
}
