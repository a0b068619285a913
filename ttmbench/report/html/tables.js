"use strict";
// Tables: sorted by a click or by Enter on a heading; rows and columns chosen by a form beside them.
// Forms with data-address keep their state and the order of tables in the address: #task=winoground&sort=zero_shot:model:up.
const stored = new URLSearchParams();
const store = (name, value) => {
  if (value === "") stored.delete(name); else stored.set(name, value);
  const plain = location.href.split("#")[0];
  if (document.querySelector("form[data-address]")) history.replaceState(null, "", stored.size ? `${plain}#${stored}` : plain);
};
const named = (table, head) => `${table.id}:${head.dataset.task ?? head.dataset.metric ?? head.textContent.trim()}`;

function sortBy(table, column, down) {
  const heads = [...table.tHead.rows[0].cells], numeric = heads[column].classList.contains("number");
  for (const other of heads) if (other.hasAttribute("aria-sort")) other.setAttribute("aria-sort", "none");
  heads[column].setAttribute("aria-sort", down ? "descending" : "ascending");
  const value = row => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
  // Runs on a part of a task stay below all others.
  const part = row => row.classList.contains("limited");
  const order = (a, b) => {
    if (part(a) !== part(b)) return part(a) - part(b);
    const x = value(a), y = value(b);
    if (x === "" || y === "") return (x === "") - (y === "");
    const compared = numeric ? x - y : x.localeCompare(y, "en", { numeric: true });
    return down ? -compared : compared;
  };
  const body = table.tBodies[0], rows = [...body.rows].sort(order);
  // Ranks are those of the column by which rows are sorted.
  const place = heads.findIndex(head => head.classList.contains("rank"));
  if (place >= 0 && rows.some(row => "rank" in row.cells[column].dataset)) for (const row of rows) {
    row.cells[place].textContent = row.cells[place].dataset.value = row.cells[column].dataset.rank ?? "";
  }
  body.append(...rows);
}

for (const table of document.querySelectorAll("table.sortable")) {
  [...table.tHead.rows[0].cells].forEach((head, column) => head.querySelector("button")?.addEventListener("click", () => {
    const before = head.getAttribute("aria-sort");
    // The largest number first, but the first name first.
    const down = before === "none" ? head.classList.contains("number") : before === "ascending";
    sortBy(table, column, down);
    if (table.id) store("sort", `${named(table, head)}:${down ? "down" : "up"}`);
  }));
}

for (const form of document.querySelectorAll("form.filters[data-for]")) {
  form.hidden = false; // without this script it would do nothing
  const target = document.getElementById(form.dataset.for);
  const all = [...form.elements].filter(one => one.name), controls = all.filter(one => one.name !== "text");
  const found = form.querySelector("output");
  const apply = () => {
    const wanted = controls.filter(one => one.value !== "").map(one => [one.name, one.value]);
    const words = (form.elements.text?.value ?? "").toLowerCase().split(/\s+/).filter(Boolean);
    const fits = cell => wanted.every(([name, value]) => !(name in cell.dataset) || cell.dataset[name] === value);
    const says = part => !words.length || words.every(word => part.textContent.toLowerCase().includes(word));
    let shown = 0, total = 0;
    const blocks = target.querySelectorAll("[data-item]");
    for (const table of blocks.length ? [] : target.querySelectorAll("table")) {
      let left = 0;
      [...table.tHead.rows[0].cells].forEach((head, column) => {
        const hidden = !fits(head);
        if (head.hidden !== hidden) for (const row of table.rows) row.cells[column].hidden = hidden;
      });
      for (const row of table.tBodies[0].rows) {
        if (row.classList.contains("reference")) continue; // chance and humans
        row.hidden = !fits(row) || !says(row);
        total += 1;
        left += !row.hidden;
      }
      shown += left;
      const block = table.closest("[data-block]");
      if (block) block.hidden = left === 0;
    }
    for (const block of blocks) {
      block.hidden = !fits(block) || !says(block);
      total += 1;
      shown += !block.hidden;
    }
    if (found) found.textContent = `${shown} of ${total} ${form.dataset.what}`;
  };
  const restore = () => {
    const state = new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");
    for (const [name, value] of state) stored.set(name, value);
    for (const one of all) {
      one.value = state.get(one.name) ?? "";
      if (one.value !== (state.get(one.name) ?? "")) one.value = ""; // an option that there is not
    }
    const [, wanted, way] = /^(.*):(up|down)$/.exec(state.get("sort") ?? "") ?? [];
    for (const table of way ? document.querySelectorAll("table.sortable[id]") : []) {
      const column = [...table.tHead.rows[0].cells].findIndex(head => named(table, head) === wanted);
      if (column >= 0) sortBy(table, column, way === "down");
    }
    apply();
  };
  form.addEventListener("input", event => {
    if ("address" in form.dataset) store(event.target.name, event.target.value);
    apply();
  });
  form.addEventListener("submit", event => event.preventDefault());
  if ("address" in form.dataset) {
    restore();
    addEventListener("hashchange", () => { if (location.hash.includes("=")) restore(); });
  } else apply();
}
