// Questions before something cannot be undone, and forms too small for a page of their own.

import { busy, fill, h } from "./dom.js";
import { named } from "./names.js";
import { sentence } from "./notices.js";
import { copyButton } from "./pieces.js";

/**
 * Ask, and do it: *act* runs while the dialog is open, so that its refusal is told there.
 *
 * With *typed*, a name must be typed (or pasted) first, letter by letter; a slip is told and
 * nothing is done. Resolves to whether it was done.
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
      // An input has one line; a name may have more, and is pasted without their ends.
      if (typed !== null && input.value !== typed.replace(/[\r\n]/g, "")) {
        input.setAttribute("aria-invalid", "true");
        input.select();
        throw new Error("That is not the name. Nothing was changed.");
      }
      await act();
    },
  });
}

/** Show a form in a dialog; *submit* throws what is wrong. Resolves to whether it was sent. */
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
