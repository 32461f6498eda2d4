// Lists that the broker searches, sorts and pages, and that refresh themselves.
//
// Search, sort and position are in the address, so that a page can be sent to a colleague, and
// the browser's Back button returns to it.

import { every, fill, h, redraw } from "./dom.js";
import { count, plural } from "./format.js";
import { sentence } from "./notices.js";
import { table } from "./table.js";

export const PAGE_ROWS = 50;
const REFRESH_MS = 5_000;
const TYPING_MS = 200;

/**
 * Return `{element, reload()}`.
 *
 * *noun* names a row, singular and plural; *load* takes `{search, sort, after, limit, signal}`
 * and returns `{rows, next, total}`; *empty* is shown when there are no rows at all; *search* is
 * the label of the search field, and *sorts* are the orders, as `[[word, label], …]`;
 * clicking the heading of the column that sorts now returns to the first of them.
 */
export function list({ context, noun, columns, key, load, empty, search = null, sorts = null }) {
  const { query, signal } = context;
  const state = {
    search: query.get("search") ?? "",
    sort: query.get("sort") ?? (sorts ? sorts[0][0] : ""),
    after: query.get("after") ?? "",
  };
  const caption = noun[1];
  // How many rows precede this page. Cursors do not tell, so it is counted and kept in the
  // address. Null: unknown.
  let skipped = state.after ? wholeNumber(query.get("skipped")) : 0;
  const before = []; // `{after, skipped}` of earlier pages: cursors lead forward only
  const shown = table({ caption, columns, key, sorting: state.sort, onSort: sorts && sortByColumn });
  const place = h("div", { class: "list-place" }, h("p", { class: "muted" }, "Loading…"));
  const trouble = h("div", { role: "alert" });
  const summary = h("span", { class: "muted list-summary", role: "status" });
  const previous = h("button", { type: "button", onclick: back }, "Previous");
  const following = h("button", { type: "button", onclick: forward }, "Next");
  const position = h("span", { class: "muted list-summary", "aria-hidden": "true" }); // the summary is announced instead
  const pager = h("nav", { class: "pager", hidden: true, "aria-label": `Pages of ${caption}` }, position, previous, following);
  let next = null;
  let rowsShown = 0;
  let asked = 0;
  let answered = null; // the request whose answer is shown

  async function reload() {
    const mine = ++asked;
    const question = JSON.stringify(state);
    try {
      const page = await load({ ...state, limit: PAGE_ROWS, signal });
      if (mine !== asked || signal.aborted) return;
      answered = question;
      draw(page);
    } catch (error) {
      // While the broker is unreachable, its last answer stays readable.
      if (mine === asked && !signal.aborted) fail(error, error.status === 0 && answered === question);
    }
  }

  function draw({ rows, next: cursor, total }) {
    next = cursor;
    rowsShown = rows.length;
    redraw(trouble);
    place.hidden = false;
    const nothing = rows.length === 0 && !state.search && !state.after;
    if (nothing) show(empty);
    else if (rows.length === 0) fill(place, h("p", { class: "muted nothing" }, state.search ? "No matches." : "No more rows."));
    else {
      shown.render(rows, state.sort);
      show(shown.element);
    }
    const paged = Boolean(next) || Boolean(state.after);
    const words = nothing ? "" : told(rows.length, total, paged);
    redraw(summary, words);
    redraw(position, words);
    previous.disabled = !state.after;
    following.disabled = !next;
    pager.hidden = !paged;
  }

  function show(element) {
    if (!place.contains(element)) fill(place, element);
  }

  function told(rows, total, paged) {
    if (!paged) return plural(total ?? rows, ...noun);
    const which = placed(rows, total ?? Infinity);
    return typeof total === "number" ? `${which} of ${plural(total, ...noun)}` : `${which} shown`;
  }

  /** Return which rows are shown, "51–100"; only how many, if their position is unknown. */
  function placed(rows, total) {
    if (skipped === null || rows === 0 || skipped + rows > total) return count(rows);
    return rows === 1 ? count(skipped + 1) : `${count(skipped + 1)}–${count(skipped + rows)}`;
  }

  function fail(error, keep) {
    redraw(trouble, h("div", { class: "problem-box" },
      h("span", {}, sentence(error)),
      h("button", { type: "button", onclick: reload }, "Try again")));
    if (keep) return;
    pager.hidden = true;
    redraw(summary, "");
    fill(place);
    place.hidden = true;
  }

  function go(change, nowSkipped = 0) {
    if (signal.aborted) return null; // typed just before leaving; the address is another view's now
    Object.assign(state, change);
    skipped = nowSkipped;
    const kept = new URLSearchParams(Object.entries({ ...state, skipped })
      .filter(([name, value]) => value && !(name === "sort" && value === sorts?.[0][0])));
    const base = location.hash.split("?")[0];
    history.replaceState(null, "", kept.size ? `${base}?${kept}` : base);
    return reload();
  }

  function sortBy(word) {
    before.length = 0;
    go({ sort: word, after: "" });
  }

  function sortByColumn(word) {
    sortBy(word === state.sort ? sorts[0][0] : word);
  }

  async function forward() {
    before.push({ after: state.after, skipped });
    await go({ after: next }, skipped === null ? null : skipped + rowsShown);
    afterPaging();
  }

  async function back() {
    const page = before.pop() ?? { after: "", skipped: 0 };
    await go({ after: page.after }, page.skipped);
    afterPaging();
  }

  function afterPaging() {
    place.scrollIntoView({ block: "nearest" });
    if (document.activeElement?.disabled) (following.disabled ? previous : following).focus();
  }

  const tools = toolbar({ search, sorts, state, summary, sortBy, find(text) {
    before.length = 0;
    go({ search: text, after: "" });
  } });
  every(REFRESH_MS, reload, signal);
  return { element: h("section", { class: "list" }, tools, trouble, place, pager), reload };
}

function wholeNumber(text) {
  return /^\d{1,15}$/.test(text ?? "") ? Number(text) : null;
}

function toolbar({ search, sorts, state, summary, find, sortBy }) {
  let timer = 0;
  const input = search && h("input", {
    type: "search", id: "list-search", placeholder: search, "aria-label": search, value: state.search,
    autocomplete: "off", spellcheck: "false",
    oninput() {
      clearTimeout(timer);
      timer = setTimeout(() => find(input.value), TYPING_MS);
    },
  });
  const choose = sorts && h("label", { class: "choose" }, "Sort by ",
    h("select", { onchange: (event) => sortBy(event.target.value) },
      sorts.map(([word, label]) => h("option", { value: word, selected: word === state.sort }, label))));
  return h("div", { class: "toolbar", role: search ? "search" : null }, input, choose, h("span", { class: "grow" }), summary);
}
