// Tables that can be sorted by a click on a heading, as numbers where a cell begins with one, and filtered by words.
"use strict";
function valueOf(row, column) {
  const text = row.cells[column].textContent.trim().replace(/,/g, "");
  const found = text.match(/^[-+\u2212]?\d+(\.\d+)?/);
  return { text: text, number: found ? Number(found[0].replace("\u2212", "-")) : null };
}
function compared(a, b) {
  if (a.number !== null && b.number !== null) return a.number - b.number;
  if (a.number !== null || b.number !== null) return a.number !== null ? -1 : 1; // what is no number comes last
  return a.text.localeCompare(b.text);
}
function sortBy(table, column) {
  const heading = table.tHead.rows[0].cells[column];
  const down = heading.getAttribute("aria-sort") === "ascending";
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", down ? "descending" : "ascending");
  const rows = Array.from(table.tBodies[0].rows, (row) => [valueOf(row, column), row]);
  rows.sort((a, b) => {
    const order = compared(a[0], b[0]);
    const bothNumbers = a[0].number !== null && b[0].number !== null;
    const bothTexts = a[0].number === null && b[0].number === null;
    return down && (bothNumbers || bothTexts) ? -order : order;
  });
  table.tBodies[0].append(...rows.map((pair) => pair[1]));
}
function filterBy(table, words) {
  for (const row of table.tBodies[0].rows) {
    const text = row.textContent.toLowerCase();
    row.hidden = !words.toLowerCase().split(/\s+/).every((word) => text.includes(word));
  }
}
function enliven(table) {
  Array.from(table.tHead.rows[0].cells).forEach((heading, column) => {
    heading.classList.add("sorts");
    heading.tabIndex = 0;
    heading.addEventListener("click", () => sortBy(table, column));
    heading.addEventListener("keydown", (event) => { if (event.key === "Enter") sortBy(table, column); });
  });
  const box = document.createElement("input");
  box.className = "filter";
  box.type = "search";
  box.placeholder = "Filter: words that a row must have";
  box.setAttribute("aria-label", box.placeholder);
  box.addEventListener("input", () => filterBy(table, box.value));
  table.parentElement.before(box);
}
if (typeof document !== "undefined") {
  document.querySelectorAll("table.sortable").forEach(enliven);
  if (window.matchMedia("(max-width: 1239px)").matches) document.querySelector("nav details").open = false;
  const open = () => document.querySelectorAll("details").forEach((one) => { one.open = true; });
  window.addEventListener("beforeprint", open);
  window.addEventListener("hashchange", () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (target && target.tagName === "DETAILS") target.open = true;
  });
} else {
  module.exports = { compared, valueOf };
}
