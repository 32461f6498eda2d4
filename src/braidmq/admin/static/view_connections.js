// Open connections of all strands; administrators can close them.

import { get, path, remove } from "./api.js";
import { confirm } from "./dialogs.js";
import { h } from "./dom.js";
import { ago, bytes, count, exactMoment } from "./format.js";
import { list } from "./lists.js";
import { named } from "./names.js";
import { say } from "./notices.js";
import { emptyState, heading, ownNoun, strandBadge } from "./pieces.js";
import { me } from "./session.js";

export function view(context) {
  const connections = list({
    context,
    noun: ownNoun("connection"),
    key: (row) => String(row.id),
    columns: [
      { title: "Peer", wide: true, cell: (row) => h("code", {}, row.peer ?? "–") },
      { title: "Strand", cell: (row) => strandBadge(row.strand) },
      { title: "Principal", cell: (row) => row.principal ? named(row.principal) : "–" },
      { title: "Since", cell: (row) => h("time", { datetime: row.since, title: exactMoment(row.since) }, ago(row.since)) },
      { title: "Subscriptions", numeric: true, cell: (row) => count(row.subscriptions) },
      { title: "In / out", numeric: true, cell: (row) => `${bytes(row.in_bytes)} / ${bytes(row.out_bytes)}` },
      ...(me.admin ? [{ title: "Actions", actions: true, cell: closeButton }] : []),
    ],
    async load({ after, limit, signal }) {
      const page = await get(path("connections"), { query: { after, limit }, signal });
      return { rows: page.connections, next: page.next, total: page.total };
    },
    empty: emptyState("No connections", "Publishers and consumers appear here while they are connected.",
      ["braidmq subscribe hello"]),
  });

  function closeButton(row) {
    return h("button", { type: "button", class: "small", onclick: () => close(row) }, "Close");
  }

  async function close(row) {
    const done = await confirm({
      title: "Close this connection?",
      text: `${row.peer ?? "The peer"} is disconnected, and what it has not acknowledged is redelivered. Most clients reconnect by themselves.`,
      action: "Close connection",
      act: () => remove(path("connections", row.id)),
    });
    if (!done) return;
    say("Connection closed.");
    connections.reload();
  }

  return {
    title: "Connections",
    element: h("div", {}, heading("Connections", { about: "Connections on Blip, Vibe and Qumbed; HTTP requests are not listed." }), connections.element),
  };
}
