// Spark cursors: positions of readers outside the broker; retention waits for them.

import { DEV_KEY, get, path, remove } from "./api.js";
import { confirm } from "./dialogs.js";
import { h } from "./dom.js";
import { count } from "./format.js";
import { list } from "./lists.js";
import { named } from "./names.js";
import { say } from "./notices.js";
import { emptyState, heading, lag } from "./pieces.js";
import { me } from "./session.js";

const SORTS = [["name", "Name"], ["lag", "Lag"]];

export function view(context) {
  const cursors = list({
    context,
    noun: ["cursor", "cursors"],
    sorts: SORTS,
    key: (row) => row.name,
    columns: [
      { title: "Cursor", wide: true, sort: "name", cell: (row) => named(row.name) },
      { title: "Principal", cell: (row) => named(row.principal) },
      { title: "Started at", numeric: true, cell: (row) => count(row.initial) },
      { title: "Position", numeric: true, cell: (row) => count(row.position) },
      { title: "Lag", numeric: true, sort: "lag", descending: true, cell: (row) => lag(row.lag) },
      { title: "Actions", actions: true, cell: (row) => h("button", { type: "button", class: "small", onclick: () => drop(row) }, "Remove") },
    ],
    async load({ sort, signal }) {
      const { cursors: rows } = await get(path("cursors"), { signal }); // all of them, by name
      return { rows: sort === "lag" ? rows.toSorted((one, other) => other.lag - one.lag) : rows, next: null };
    },
    empty: emptyState("No Spark cursors",
      "A pipeline or a streaming query with a group keeps its position here, and retention waits for it:",
      [`braidmq pipeline archive --path data --out tables/archive --group archive --api-key ${me.dev ? DEV_KEY : "KEY"}`]),
  });

  async function drop(row) {
    const done = await confirm({
      title: "Remove this cursor?",
      text: "Retention no longer waits for its reader, which may then find a gap.",
      action: "Remove cursor",
      typed: row.name,
      act: () => remove(path("cursors", row.name)),
    });
    if (!done) return;
    say("Cursor removed.");
    cursors.reload();
  }

  return {
    title: "Spark cursors",
    element: h("div", {}, heading("Spark cursors", { about: "Lag is counted in log ids: messages of all topics, and the records between them." }), cursors.element),
  };
}
