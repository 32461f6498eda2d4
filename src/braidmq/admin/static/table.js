// Tables, which become one card per row where there is no width for columns.
//
// A table is redrawn only when its rows have changed, and the focused control keeps the focus:
// a list that refreshes itself must not disturb keyboard users.

import { fill, h, icon, unseen } from "./dom.js";

/**
 * Return `{element, render(rows)}`.
 *
 * A column is `{title, cell(row), numeric, sort, wide, actions}`; *sort* is the word that the
 * server sorts by. On small screens CSS turns cells into blocks, which loses their semantics;
 * hence the roles.
 */
export function table({ caption, columns, key, sorting = null, onSort = null }) {
  const head = h("tr", { role: "row" });
  const body = h("tbody", { role: "rowgroup" });
  const element = h("table", { role: "table" },
    h("caption", { class: "unseen-text" }, caption),
    h("thead", { role: "rowgroup" }, head), body);
  let drawn = null;
  let sort = sorting;

  function heads() {
    fill(head, columns.map((column) => headCell(column, sort, onSort)));
  }

  function row(data) {
    return h("tr", { role: "row", "data-key": key(data) }, columns.map((column) =>
      h("td", { role: "cell", class: cellClass(column), "data-label": column.title }, column.cell(data))));
  }

  function render(rows, newSort = sort) {
    if (newSort !== sort) {
      sort = newSort;
      heads();
    }
    const now = JSON.stringify(rows);
    if (now === drawn) return;
    drawn = now;
    const focus = focusIn(body);
    fill(body, rows.map(row));
    focus?.();
  }

  heads();
  return { element, render };
}

function headCell(column, sort, onSort) {
  const sorted = column.sort && column.sort === sort;
  return h("th", {
    role: "columnheader", scope: "col", class: cellClass(column),
    "aria-sort": sorted ? (column.descending ? "descending" : "ascending") : null,
  },
  column.sort && onSort
    ? h("button", { type: "button", class: "sort", onclick: () => onSort(column.sort) },
      column.title, sorted ? icon(column.descending ? "down" : "up") : [icon("sort"), unseen(": sort")])
    : column.actions ? unseen(column.title) : column.title);
}

function cellClass(column) {
  const classes = [column.numeric && "numeric", column.wide && "wide", column.actions && "row-actions"];
  return classes.filter(Boolean).join(" ") || null;
}

/** Return a function that restores the focus to where it is now, or null if it is elsewhere. */
function focusIn(body) {
  const active = document.activeElement;
  if (!body.contains(active)) return null;
  const rowKey = active.closest("tr").dataset.key;
  const index = controls(active.closest("tr")).indexOf(active);
  return () => {
    const same = [...body.rows].find((row) => row.dataset.key === rowKey);
    const target = (same ? controls(same)[index] : null) ?? body.querySelector("a, button");
    target?.focus({ preventScroll: true });
  };
}

function controls(row) {
  return [...row.querySelectorAll("a, button, summary")];
}
