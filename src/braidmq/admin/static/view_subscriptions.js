// Subscriptions: which principal reads which topic, and its lag.

import { get, path } from "./api.js";
import { h } from "./dom.js";
import { count } from "./format.js";
import { list } from "./lists.js";
import { named, topicLink } from "./names.js";
import { emptyState, heading, lag, ownNoun, strandBadge } from "./pieces.js";

const SORTS = [["id", "Oldest first"], ["lag", "Lag"]];

export function view(context) {
  const subscriptions = list({
    context,
    noun: ownNoun("subscription"),
    sorts: SORTS,
    search: "Search by topic",
    key: (row) => `${row.id} ${row.connection}`,
    columns: [
      { title: "Topic", wide: true, cell: (row) => topicLink(row.topic) },
      { title: "Strand", cell: (row) => strandBadge(row.strand) },
      { title: "Principal", cell: (row) => row.principal ? named(row.principal) : "–" },
      { title: "QoS", numeric: true, cell: (row) => row.qos ?? "–" },
      { title: "Lag", numeric: true, sort: "lag", descending: true, cell: (row) => lag(row.lag) },
      { title: "In flight", numeric: true, cell: (row) => count(row.in_flight) },
      { title: "Connection", numeric: true, cell: (row) => connection(row.connection) },
    ],
    async load({ signal, ...query }) {
      const page = await get(path("subscriptions"), { query, signal });
      return { rows: page.subscriptions, next: page.next, total: page.total };
    },
    empty: emptyState("No subscriptions", "Subscriptions of all strands appear here, each with its backlog.",
      ["braidmq subscribe hello"]),
  });
  return {
    title: "Subscriptions",
    element: h("div", {}, heading("Subscriptions", {
      about: "Lag counts waiting messages; messages in flight are delivered and not yet acknowledged.",
    }), subscriptions.element),
  };
}

function connection(id) {
  return id === null || id === undefined
    ? h("span", { class: "muted" }, "not connected")
    : h("a", { href: `#/connections/${id}` }, String(id));
}
