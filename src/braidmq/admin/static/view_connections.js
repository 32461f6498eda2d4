// Who is connected: one row for each client, and the connections of one of them on a page of their own.
//
// `#/connections` lists clients, `#/connections/CLIENT` the connections of one, and
// `#/connections/NUMBER` a single connection. Administrators can close connections.

import { get, path, remove } from "./api.js";
import { confirm } from "./dialogs.js";
import { h, redraw } from "./dom.js";
import { ago, bytes, count, exactMoment, plural } from "./format.js";
import { list } from "./lists.js";
import { inAddress, named } from "./names.js";
import { say } from "./notices.js";
import { emptyState, heading, ownNoun, strandBadge } from "./pieces.js";
import { me } from "./session.js";

export function view(context) {
  return context.params.which === undefined ? clientsView(context) : connectionsView(context);
}

function clientsView(context) {
  const counted = h("span", {});
  const clients = list({
    context,
    noun: ["client", "clients"],
    key: (row) => row.id,
    columns: [
      { title: "Client", wide: true, cell: (row) => h("a", { href: `#/connections/${inAddress(row.id)}` }, who(row.principal)) },
      { title: "Address", cell: (row) => h("code", {}, row.address || "–") },
      { title: "Connections", cell: (row) => h("span", { class: "strands" }, Object.entries(row.strands).map(byStrand)) },
      { title: "Since", cell: (row) => since(row) },
      { title: "Subscriptions", numeric: true, cell: (row) => count(row.subscriptions) },
      { title: "In / out", numeric: true, cell: moved },
    ],
    async load({ after, limit, signal }) {
      const page = await get(path("clients"), { query: { after, limit }, signal });
      redraw(counted, plural(page.connections, ...ownNoun("connection")), ". ");
      return { rows: page.clients, next: page.next, total: page.total };
    },
    empty: emptyState("No connections", "Publishers and consumers appear here while they are connected.",
      ["braidmq subscribe hello"]),
  });
  return {
    title: "Connections",
    element: h("div", {}, heading("Connections", {
      about: [counted, "A client is a user or key at one address, with all of its connections. HTTP requests are not listed."],
    }), clients.element),
  };
}

function connectionsView(context) {
  const { which } = context.params;
  const isNumber = /^\d{1,15}$/.test(which); // the id of a client has an @
  const place = h("span", {}, isNumber ? `Connection ${which}` : "Client");
  const connections = list({
    context,
    noun: ownNoun("connection"),
    key: (row) => String(row.id),
    columns: [
      { title: "Peer", wide: true, cell: (row) => h("code", {}, row.peer ?? "–") },
      { title: "Strand", cell: (row) => strandBadge(row.strand) },
      ...(isNumber ? [{ title: "Client", cell: (row) => who(row.principal) }] : []),
      { title: "Since", cell: (row) => since(row) },
      { title: "Subscriptions", numeric: true, cell: (row) => count(row.subscriptions) },
      { title: "In / out", numeric: true, cell: moved },
      ...(me.admin ? [{ title: "Actions", actions: true, cell: closeButton }] : []),
    ],
    load: isNumber ? loadOne : loadOfClient,
    empty: emptyState("Not connected", "The connection is closed. Most clients connect again by themselves, with another number."),
  });

  async function loadOfClient({ after, limit, signal }) {
    const page = await get(path("connections"), { query: { after, limit, client: which }, signal });
    const first = page.connections[0];
    if (first) redraw(place, who(first.principal), " at ", h("span", { class: "name" }, which.slice(which.indexOf("@") + 1)));
    return { rows: page.connections, next: page.next, total: page.total };
  }

  async function loadOne({ signal }) {
    const page = await get(path("connections"), { query: { after: Number(which) - 1, limit: 1 }, signal });
    return { rows: page.connections.filter((row) => row.id === Number(which)), next: null };
  }

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
    title: isNumber ? `Connection ${which}` : "Client",
    element: h("div", {}, heading(place, {
      above: h("p", { class: "crumbs" }, h("a", { href: "#/connections" }, "Connections")),
    }), connections.element),
  };
}

function who(principal) {
  return principal ? named(principal) : "not signed in yet";
}

function byStrand([strand, connections]) {
  return h("span", {}, strandBadge(strand), ` ${count(connections)}`);
}

function since(row) {
  return h("time", { datetime: row.since, title: exactMoment(row.since) }, ago(row.since));
}

function moved(row) {
  return h("span", { class: "either" }, h("span", {}, `${bytes(row.in_bytes)} /`), " ", h("span", {}, bytes(row.out_bytes)));
}
