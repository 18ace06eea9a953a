// Sort a long table by a click on the title of a column: numbers by size, largest first; a dash is always last.
"use strict";

const LONG = 10;

function valueOf(row, column) {
  const text = row.cells[column].textContent.trim();
  const number = Number(text.replaceAll(",", ""));
  return text === "" || text === "-" ? null : Number.isNaN(number) ? text : number;
}

function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b));
}

function sortBy(table, column, isAscending) {
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row) => ({ row, value: valueOf(row, column) }));
  rows.sort((a, b) => {
    if (a.value === null || b.value === null) return (a.value === null) - (b.value === null);
    return isAscending ? compare(a.value, b.value) : compare(b.value, a.value);
  });
  body.append(...rows.map((one) => one.row));
}

function makeSortable(table) {
  for (const [column, head] of [...table.tHead.rows[0].cells].entries()) {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    button.style.cssText = "all: unset; cursor: pointer";
    button.title = "sort by this column";
    head.append(button);
    button.addEventListener("click", () => {
      const isNumber = [...table.tBodies[0].rows].some((row) => typeof valueOf(row, column) === "number");
      const sorted = head.getAttribute("aria-sort");
      const isAscending = sorted ? sorted === "descending" : !isNumber;
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", isAscending ? "ascending" : "descending");
      sortBy(table, column, isAscending);
    });
  }
}

document.addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll("article table")) {
    if (table.tHead && table.tBodies.length && table.tBodies[0].rows.length >= LONG) makeSortable(table);
  }
});
