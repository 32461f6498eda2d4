// Users and keys: who may come in, and what for. Secrets are nowhere in it.

import { get, path } from "./api.js";
import { fill, h } from "./dom.js";
import { named } from "./names.js";
import { sentence } from "./notices.js";
import { badge, command, emptyState, heading, panel, when } from "./pieces.js";
import { table } from "./table.js";

export function view({ signal }) {
  const place = h("div", {}, h("p", { class: "muted" }, "Loading…"));
  get(path("keys"), { signal }).then((found) => draw(place, found)).catch((error) => {
    if (signal.aborted) return;
    fill(place, error.status === 403
      ? emptyState("For administrators", "This key may not see users and keys. Sign in with one that has admin = true.")
      : h("div", { class: "problem-box", role: "alert" }, sentence(error)));
  });
  return {
    title: "Users and keys",
    element: h("div", {}, heading("Users and keys", { about: "What each may do. Keys themselves are shown once, when they are made." }), place),
  };
}

function draw(place, { keys, users }) {
  fill(place,
    panel("API keys", keys.length ? keyTable(keys) : emptyState("No keys are configured", "This broker runs in development mode, with a key that everybody knows. Make one of your own:"),
      h("details", { class: "hint" }, h("summary", {}, "Make a key"),
        h("p", { class: "muted" }, "It prints the key once, and the block for the configuration file:"),
        command("braidmq keys new --name billing --publish 'orders.*' --subscribe 'orders.*'"))),
    panel("Users", users.length ? userTable(users) : h("p", { class: "muted nothing" },
      "No users. They come with Vibe clients that sign in with a name and a password; see docs/protocols/vibe.md.")));
}

function keyTable(keys) {
  const shown = table({
    caption: "API keys",
    key: (row) => row.name,
    columns: [
      { title: "Name", cell: (row) => named(row.name) },
      { title: "Publish", wide: true, cell: (row) => patterns(row.publish) },
      { title: "Subscribe", wide: true, cell: (row) => patterns(row.subscribe) },
      { title: "Role", cell: (row) => row.admin ? badge("admin", "good") : h("span", { class: "muted" }, "–") },
    ],
  });
  shown.render(keys);
  return shown.element;
}

function userTable(users) {
  const shown = table({
    caption: "Users",
    key: (row) => row.name,
    columns: [
      { title: "Name", cell: (row) => named(row.name) },
      { title: "Grants", wide: true, cell: (row) => grants(row.grants) },
      { title: "Since", cell: (row) => when(row.created) },
    ],
  });
  shown.render(users);
  return shown.element;
}

function patterns(list) {
  if (!list?.length) return h("span", { class: "muted" }, "nothing");
  return h("span", { class: "patterns" }, list.map((pattern) => h("code", {}, named(pattern))));
}

function grants(list) {
  if (!list.length) return h("span", { class: "muted" }, "nothing");
  return h("ul", { class: "plain" }, list.map((grant) =>
    h("li", {}, h("code", {}, named(grant.pattern)), ` ${grant.operations.join(", ").replaceAll("_", " ")}`)));
}
