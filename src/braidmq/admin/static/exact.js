// Answers of the API with payloads as they were sent: parsing alone would change them.
//
// The broker puts the JSON of a payload into its answer to the letter. Numbers that JavaScript
// would write otherwise keep their digits where the browser can, and beside each payload of a
// list stands its own text, as `sent`, spaces and all.

const SCANNED_CHARS_MAX = 1024 * 1024; // it is for one line of each: more would be felt
const MESSAGE_DEPTH = 3; // {"messages": [{
const TOKENS = /"(?:[^"\\]+|\\.)*"|[{}[\]]/gs; // strings are whole: what is in them is no bracket

/** Return what the answer *text* says. */
export function exactly(text) {
  const answer = typeof JSON.rawJSON === "function" ? JSON.parse(text, digits) : JSON.parse(text);
  const messages = answer.messages ?? answer.letters;
  if (messages && text.length <= SCANNED_CHARS_MAX) {
    payloadsIn(text).forEach((sent, index) => {
      if (messages[index].encoding === "json") messages[index].sent = sent;
    });
  }
  return answer;
}

// A payload's 12345678901234567890 or 1.10 must not change by being looked at.
function digits(_name, value, context) {
  return typeof value === "number" && String(value) !== context.source ? JSON.rawJSON(context.source) : value;
}

/** Return the text of the payload of each message in a list, null where there is none. */
function payloadsIn(text) {
  const found = [];
  let depth = 0;
  let start = 0;
  for (const { 0: token, index } of text.matchAll(TOKENS)) {
    const end = index + token.length;
    if (token === "{" || token === "[") {
      depth += 1;
      if (depth === MESSAGE_DEPTH) found.push(null);
    } else if (token === "}" || token === "]") depth -= 1;
    else if (depth === MESSAGE_DEPTH && text[end] === ":") {
      // A name: what was before it has ended, with a comma.
      if (start) found[found.length - 1] = text.slice(start, index - 1);
      start = token === '"payload"' ? end + 1 : 0;
    }
  }
  return found;
}
