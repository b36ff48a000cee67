// Tables that can be sorted by a click on a heading, as numbers where a cell begins with one, and filtered by words.
"use strict";
function valueOf(row, column) {
  const text = row.cells[column].textContent.trim().replace(/,/g, "");
  const found = text.replace("\u2212", "-").match(/^[-+]?\d+(\.\d+)?/);
  return { text: text, number: found ? Number(found[0]) : null };
}
function compared(a, b, down = false) { // numbers come before other texts in either direction
  if ((a.number === null) !== (b.number === null)) return a.number === null ? 1 : -1;
  const order = a.number === null ? a.text.localeCompare(b.text) : a.number - b.number;
  return down ? -order : order;
}
function sortBy(table, heading, column) {
  const down = heading.getAttribute("aria-sort") === "ascending";
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", down ? "descending" : "ascending");
  const rows = Array.from(table.tBodies[0].rows);
  table.tBodies[0].append(...rows.sort((a, b) => compared(valueOf(a, column), valueOf(b, column), down)));
}
function enliven(table) {
  Array.from(table.tHead.rows[0].cells).forEach((heading, column) => {
    heading.classList.add("sorts");
    heading.tabIndex = 0;
    heading.addEventListener("click", () => sortBy(table, heading, column));
    heading.addEventListener("keydown", (event) => { if (event.key === "Enter") sortBy(table, heading, column); });
  });
  const box = document.createElement("input");
  Object.assign(box, { className: "filter", type: "search", placeholder: "Filter: words that a row must have" });
  box.setAttribute("aria-label", box.placeholder);
  box.addEventListener("input", () => {
    const words = box.value.toLowerCase().split(/\s+/);
    for (const row of table.tBodies[0].rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
  });
  table.parentElement.before(box);
}
if (typeof document !== "undefined") {
  document.querySelectorAll("table.sortable").forEach(enliven);
  window.addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((one) => { one.open = true; }));
  window.addEventListener("hashchange", () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (target && target.tagName === "DETAILS") target.open = true;
  });
} else {
  module.exports = { compared, valueOf };
}
