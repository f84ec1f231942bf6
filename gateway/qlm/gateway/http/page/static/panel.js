// The panel that explains one group or request, in the words of `qlm plan explain`, with a request's history.

import { element, replace, table } from "./dom.js";
import { met } from "./tables.js";
import { relative, span } from "./words.js";
import { get } from "./stream.js";

export class Panel {
  constructor({ panel, title, body, columns, now }) {
    Object.assign(this, { panel, title, body, columns, now });
    this.name = null;
    this.back = null;
    this.asked = 0;
  }

  /** Explain a group or a request; `from` is focused again when the panel is closed. */
  async open(name, from) {
    this.name = name;
    this.back = from ?? this.back;
    this.panel.hidden = false;
    this.columns.toggleAttribute("data-open", true);
    this.title.textContent = `Why ${name} is where it is`;
    replace(this.body, element("p", { class: "hint" }, "asking the gateway"));
    this.panel.focus();
    this.asked += 1;
    const asked = this.asked;
    try {
      const answer = await (await get(`ui/explanation?of=${encodeURIComponent(name)}`)).json();
      if (asked === this.asked) this.show(answer);
    } catch (error) {
      if (asked === this.asked) replace(this.body, element("p", { class: "bad" }, sentence(error)));
    }
  }

  close() {
    if (this.panel.hidden) return;
    this.panel.hidden = true;
    this.columns.toggleAttribute("data-open", false);
    this.back?.focus();
  }

  show({ parts, request }) {
    const shown = [...grouped(parts)];
    if (request) shown.push(...this.history(request));
    replace(this.body, ...shown);
  }

  history(request) {
    const began_s = request.arrival_s;
    const facts = [
      ["state", request.outcome ? `${request.status} (${request.outcome})` : request.status], ["model", request.model],
      ["in time", met(request)], ["tenant", request.tenant], ["prompt", `${request.prompt_tokens} tokens`], ["answer", `${request.output_tokens} tokens`],
    ];
    const events = request.events.map((each) => [`+${span(Math.max(0, each.at_s - began_s))}`, each.what, each.instance ?? "none", each.why || "none"]);
    return [
      element("h3", {}, "The request"), scrolled("The request", table([["what"], ["value"]], facts)),
      element("h3", {}, `Its history, since it arrived ${relative(began_s - this.now())}`),
      scrolled("History", table([["after"], ["event"], ["instance"], ["why"]], events)),
    ];
  }
}

function sentence(error) {
  return error.status ? error.message : "The gateway does not answer. Try again once it is back.";
}

/** Sentences, lists of those that begin with a dash, and tables. */
function* grouped(parts) {
  let list = null;
  for (const part of parts) {
    if (part.text?.startsWith("- ")) {
      list ??= element("ul");
      list.append(element("li", {}, part.text.slice(2)));
      continue;
    }
    if (list) yield list;
    list = null;
    yield part.text === undefined ? tableOf(part) : element("p", {}, part.text);
  }
  if (list) yield list;
}

function tableOf({ title, columns, right, rows, notes }) {
  const made = table(columns.map((name, at) => [name, right[at]]), rows, title || null);
  return scrolled(title || "Groups before it", made, ...notes.map((each) => element("p", { class: "hint" }, each)));
}

function scrolled(label, ...children) {
  return element("div", { class: "wide", tabindex: "0", role: "region", "aria-label": label }, ...children);
}
