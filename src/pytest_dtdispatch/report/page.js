"use strict";
(() => {
  document.documentElement.classList.add("active");
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, place) => {
      const button = head.querySelector("button");
      if (button) button.addEventListener("click", () => sort(table, heads, place));
    });
  }
  const folds = [...document.querySelectorAll("details.more")];
  folds.forEach((fold) => fold.addEventListener("toggle", () => unfold(fold)));
  const controls = document.getElementById("controls");
  if (controls) filterable(controls);

  // Rows that are unfolded stand in one table with the others, so that they are sorted with them.
  function unfold(fold) {
    fold.previousElementSibling.append(...fold.querySelectorAll("tbody"));
    fold.remove();
  }

  function sort(table, heads, place) {
    if (table.nextElementSibling) unfold(table.nextElementSibling);
    const head = heads[place];
    const first = head.dataset.first || "descending";
    const other = first === "descending" ? "ascending" : "descending";
    const order = head.getAttribute("aria-sort") === first ? other : first;
    heads.forEach((one) => one.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", order);
    const sign = order === "ascending" ? 1 : -1;
    const keyed = [...table.tBodies].map((body, n) => [keyOf(body.rows[0].cells[place]), n, body]);
    keyed.sort(([one, m], [other, n]) => compare(one, other, sign) || m - n);
    keyed.forEach(([, , body]) => table.append(body));
  }

  function keyOf(cell) {
    const text = cell.textContent.trim().replaceAll(",", "").replace(/(%| r\d+)$/, "");
    if (text === "-" || text === "") return null;
    return Number.isNaN(Number(text)) ? text : Number(text);
  }

  // What has no figure comes last, in either order.
  function compare(one, other, sign) {
    if (one === null || other === null) return (one === null) - (other === null);
    const areNumbers = typeof one === "number" && typeof other === "number";
    return sign * (areNumbers ? one - other : `${one}`.localeCompare(`${other}`));
  }

  function filterable(controls) {
    const bodies = [...document.querySelectorAll("table.rows > tbody")].map((body) => [body, body.textContent.toLowerCase()]);
    const lists = new Set(bodies.map(([body]) => body.closest(".list")));
    const apply = () => {
      const words = controls.elements.text.value.toLowerCase().split(/\s+/).filter(Boolean);
      const mark = controls.elements.marks.value;
      if (mark || words.length) for (const list of lists) list.querySelectorAll("details.more").forEach(unfold);
      let shown = 0;
      for (const [body, text] of bodies) {
        const isMarked = !mark || (body.dataset.marks ?? "").split(" ").includes(mark);
        body.hidden = !isMarked || !words.every((word) => text.includes(word));
        shown += !body.hidden;
      }
      for (const list of lists) list.hidden = !list.querySelector("tbody:not([hidden])");
      document.getElementById("shown").textContent = `${shown} of ${bodies.length} rows`;
    };
    controls.addEventListener("input", apply);
    controls.addEventListener("reset", () => setTimeout(apply));
    controls.addEventListener("submit", (event) => event.preventDefault());
    apply();
  }
})();
