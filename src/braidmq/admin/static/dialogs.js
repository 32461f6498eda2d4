// Confirmations of what cannot be undone, and forms too small for a page of their own.

import { busy, fill, h, icon, unseen } from "./dom.js";
import { named } from "./names.js";
import { sentence } from "./notices.js";
import { copyButton } from "./pieces.js";

/**
 * Ask, then run *act* while the dialog is still open, so that its error appears there.
 *
 * With *typed*, the user must first type or paste that name exactly. Resolves to whether it was
 * done.
 */
export function confirm({ title, text, action, act, typed = null, danger = true }) {
  const input = typed !== null && h("input", {
    id: "typed", autocomplete: "off", autocapitalize: "off", spellcheck: "false",
    "aria-describedby": "dialog-problem",
  });
  const question = typed !== null && h("div", { class: "field" },
    h("label", { for: "typed" }, "Type the name to confirm"),
    h("div", { class: "typed-name" }, named(typed, { max: 400 }), copyButton(typed, "Copy the name")),
    input);
  return ask({
    title,
    body: [h("p", {}, text), question],
    action,
    danger,
    async submit() {
      // An input has one line; line breaks of a name are lost when it is pasted.
      if (typed !== null && input.value !== typed.replace(/[\r\n]/g, "")) {
        input.setAttribute("aria-invalid", "true");
        input.select();
        throw new Error("The name does not match. Nothing was changed.");
      }
      await act();
    },
  });
}

/**
 * Return `{element, open()}`: a panel that slides over the edge of the page.
 *
 * It is closed with its button, Escape or a click beside it, and keeps what was typed.
 */
export function drawer(title, content) {
  const shut = h("button", { type: "button", class: "quiet", onclick: () => element.close() }, icon("close"), unseen("Close"));
  const element = h("dialog", {
    class: "drawer", "aria-labelledby": "drawer-title",
    onclick(event) {
      if (event.target === element) element.close(); // the backdrop: the content fills the panel
    },
  }, h("div", { class: "drawer-inside" },
    h("header", {}, h("h2", { id: "drawer-title" }, title), shut),
    content));

  function open() {
    element.showModal();
    (element.querySelector("textarea") ?? element.querySelector("input, select"))?.focus();
  }

  return { element, open };
}

/** Show a form in a dialog; *submit* throws on invalid input. Resolves to whether it was sent. */
export function ask({ title, body, action, submit, danger = false }) {
  const problem = h("p", { class: "problem", id: "dialog-problem", role: "alert" });
  const go = h("button", { type: "submit", class: danger ? "danger" : "primary" }, action);
  const cancel = h("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
  let sent = false;

  function onsubmit(event) {
    event.preventDefault();
    busy(go, attempt);
  }

  async function attempt() {
    fill(problem);
    try {
      await submit();
      sent = true;
      dialog.close();
    } catch (error) {
      fill(problem, sentence(error));
    }
  }

  const dialog = h("dialog", { "aria-labelledby": "dialog-title" },
    h("form", { onsubmit, novalidate: true },
      h("h2", { id: "dialog-title" }, title),
      h("div", { class: "dialog-body" }, body),
      problem,
      h("div", { class: "actions end" }, cancel, go)));
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(sent);
    });
    document.body.append(dialog);
    dialog.showModal();
    (dialog.querySelector("input, select, textarea") ?? cancel).focus();
  });
}
