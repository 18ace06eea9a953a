"use strict";
(() => {
  document.documentElement.classList.add("active");
  const table = document.getElementById("rows");
  for (const one of document.querySelectorAll("table.sortable")) sortable(one);
  if (table) filterable(table);

  function sortable(table) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, place) => {
      const button = head.querySelector("button");
      if (button) button.addEventListener("click", () => sort(table, heads, place));
    });
  }

  function sort(table, heads, place) {
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
    const key = cell.dataset.key ?? cell.textContent.trim().replaceAll(",", "");
    if (key === "-" || key === "") return null;
    return Number.isNaN(Number(key)) ? cell.textContent : Number(key);
  }

  // What has no figure comes last, in either order.
  function compare(one, other, sign) {
    if (one === null || other === null) return (one === null) - (other === null);
    return sign * (typeof one === typeof other && typeof one === "number" ? one - other : `${one}`.localeCompare(`${other}`));
  }

  function filterable(table) {
    const controls = document.getElementById("controls");
    const bodies = [...table.tBodies].map((body) => [body, body.textContent.toLowerCase()]);
    const value = (name) => (controls.elements[name] ? controls.elements[name].value : "");
    const apply = () => {
      const words = value("text").toLowerCase().split(/\s+/).filter(Boolean);
      const state = value("state");
      let shown = 0;
      for (const [body, text] of bodies) {
        const has = (name, wanted) => !wanted || (body.dataset[name] ?? "").split(" ").includes(wanted);
        const fits =
          (!value("op") || body.dataset.op === value("op")) &&
          has("states", state) &&
          has("marks", value("marks")) &&
          words.every((word) => text.includes(word));
        body.hidden = !fits;
        shown += fits;
      }
      for (const cell of table.querySelectorAll("[data-state]")) {
        cell.hidden = Boolean(state) && cell.dataset.state !== state;
      }
      document.getElementById("shown").textContent = `${shown} of ${bodies.length} rows`;
    };
    controls.addEventListener("input", apply);
    controls.addEventListener("reset", () => setTimeout(apply));
    controls.addEventListener("submit", (event) => event.preventDefault());
    apply();
  }
})();
