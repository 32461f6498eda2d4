// Answers of the API with payloads exactly as they were sent: plain parsing would change them.
//
// The broker copies the JSON of a payload verbatim into its answer. Numbers that JavaScript would
// format differently keep their digits, if the browser supports it, and each message of a list
// gets the verbatim text of its payload as `sent`.

const SCANNED_CHARS_MAX = 1024 * 1024; // only previews need it, and scanning more would be noticeable
const MESSAGE_DEPTH = 3; // {"messages": [{
const TOKENS = /"(?:[^"\\]+|\\.)*"|[{}[\]]/gs; // strings match as a whole: brackets inside them do not count

/** Parse the answer *text*. */
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

// A payload's 12345678901234567890 or 1.10 must be shown unchanged.
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
      // The next name: the value before it has ended, with a comma.
      if (start) found[found.length - 1] = text.slice(start, index - 1);
      start = token === '"payload"' ? end + 1 : 0;
    }
  }
  return found;
}
