// Users and keys with their permissions, and never a secret.

import { get, path } from "./api.js";
import { h } from "./dom.js";
import { list } from "./lists.js";
import { named } from "./names.js";
import { badge, command, emptyState, heading, panel, when } from "./pieces.js";
import { me } from "./session.js";

export function view(context) {
  return {
    title: "Users and keys",
    element: h("div", {},
      heading("Users and keys", { about: "Permissions of each user and key. A key is shown only once, when it is created." }),
      me.admin
        ? everyPrincipal(context)
        : emptyState("Administrators only", "This key cannot list users and keys. Sign in with one that has admin = true.")),
  };
}

function everyPrincipal(context) {
  const shown = list({
    context,
    noun: ["user or key", "users and keys"],
    search: "Search by name",
    key: (row) => row.name,
    columns: [
      { title: "Name", cell: (row) => named(row.name) },
      { title: "Permissions", wide: true, cell: (row) => grants(row.grants) },
      { title: "Kind", cell: (row) => row.created ? "user" : ["API key", row.admin ? [" ", badge("admin", "good")] : null] },
      { title: "Since", cell: (row) => row.created ? when(row.created) : h("span", { class: "muted" }, "–") },
    ],
    async load({ search, after, limit, signal }) {
      const page = await get(path("keys"), { query: { search, after, limit }, signal });
      return { rows: [...page.keys.map(asGranted), ...page.users], next: page.next, total: page.total };
    },
    empty: emptyState("No keys are configured", "Create one as described below."),
  });
  return [
    shown.element,
    panel("Add a key",
      h("div", { class: "hint" },
        h("p", { class: "muted" }, "This prints a new key once, and the block for the configuration file:"),
        command("braidmq keys new --name billing --publish 'orders.*' --subscribe 'orders.*'"),
        h("p", { class: "muted" }, "Vibe clients sign in as users, with a name and a password; see docs/protocols/vibe.md."))),
  ];
}

/** Return a key with its permissions as a user has them: by pattern. */
function asGranted(key) {
  const granted = new Map();
  for (const operation of ["publish", "subscribe"]) {
    for (const pattern of key[operation]) granted.set(pattern, [...(granted.get(pattern) ?? []), operation]);
  }
  return { ...key, grants: [...granted].map(([pattern, operations]) => ({ pattern, operations })) };
}

function grants(list) {
  if (!list.length) return h("span", { class: "muted" }, "none");
  return h("ul", { class: "plain" }, list.map((grant) =>
    h("li", {}, h("code", {}, named(grant.pattern)), ` ${grant.operations.join(", ").replaceAll("_", " ")}`)));
}
