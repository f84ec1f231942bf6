// Elements from plain data. Text is always text: nothing that comes from the cluster is read as HTML.

/** Text of more characters is wrapped at its blanks; ids have none. */
const SENTENCE = 16;

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "onclick") made.addEventListener("click", value);
    else if (value !== null && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((each) => each !== null));
  return made;
}

/** A table: `columns` are [title, isNumber], `rows` are lists of text or elements, the first cell heads its row. */
export function table(columns, rows, caption = null) {
  const head = columns.map(([title, number]) => element("th", { scope: "col", class: number ? "number" : null }, title));
  const body = rows.map((cells) => element("tr", {}, ...cells.map((cell, at) => {
    const sentence = typeof cell === "string" && cell.length > SENTENCE && cell.includes(" ");
    const kind = columns[at][1] ? "number" : sentence ? "sentence" : null;
    return element(at ? "td" : "th", { class: kind, scope: at ? null : "row" }, cell);
  })));
  return element("table", {}, caption && element("caption", {}, caption),
    element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...body));
}

/** A bar of a share with its text beside it, which says all that the bar does. */
export function gauge(share, words, low = false) {
  const inner = element("i");
  inner.style.width = `${Math.round(100 * Math.max(0, Math.min(1, share)))}%`;
  return element("span", {}, element("span", { class: low ? "gauge low" : "gauge", "aria-hidden": "true" }, inner), words);
}

export function replace(parent, ...children) {
  parent.replaceChildren(...children);
}
