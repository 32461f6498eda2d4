// The view of each address. Views are loaded when they are first shown.
//
// A view module has `view(context)`, which returns `{title, element}`; the context is
// `{section, params, query, signal, mark}`, and everything a view starts must end with its signal.
// `mark(section)` lights another entry of the menu.

const ROUTES = [
  ["overview", "overview"],
  ["topics", "topics"],
  ["topics/:name", "topic"],
  ["topics/:name/:offset", "message"],
  ["queues", "queues"],
  ["queues/:name", "topic"],
  ["queues/:name/:offset", "message"],
  ["dead-letters", "dead_letters"],
  ["dead-letters/:name", "letters"],
  ["dead-letters/:name/:offset", "message"],
  ["subscriptions", "subscriptions"],
  ["connections", "connections"],
  ["connections/:which", "connections"],
  ["cursors", "cursors"],
  ["log", "log"],
  ["keys", "keys"],
];

/** Return `{module, section, params, query}` of a hash, or null if no view matches. */
export function match(hash) {
  const [address, search = ""] = hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  const parts = (address || "overview").split("/").map(decoded);
  for (const [pattern, module] of ROUTES) {
    const params = fits(pattern.split("/"), parts);
    if (params) return { module, section: parts[0], params, query: new URLSearchParams(search) };
  }
  return null;
}

function fits(pattern, parts) {
  if (pattern.length !== parts.length) return null;
  const params = {};
  for (const [index, word] of pattern.entries()) {
    if (word.startsWith(":") && parts[index]) params[word.slice(1)] = parts[index];
    else if (word !== parts[index]) return null;
  }
  return params;
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // edited by hand, with a stray %
  }
}

/** Load the module of a view. */
export function load(module) {
  return import(`./view_${module}.js`);
}
