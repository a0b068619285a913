"use strict";
// Tables: sorted by a click or by Enter on a heading; rows and columns chosen by a form beside them.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.querySelector("button")?.addEventListener("click", () => {
    const numeric = head.classList.contains("number");
    const before = head.getAttribute("aria-sort");
    // The largest number first, but the first name first.
    const down = before === "none" ? numeric : before === "ascending";
    for (const other of heads) if (other.hasAttribute("aria-sort")) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
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
    const body = table.tBodies[0];
    body.append(...[...body.rows].sort(order));
  }));
}
for (const form of document.querySelectorAll("form.filters[data-for]")) {
  const target = document.getElementById(form.dataset.for);
  const controls = [...form.elements].filter(one => one.name && one.name !== "text");
  const found = form.querySelector("output");
  const apply = () => {
    const wanted = controls.filter(one => one.value !== "").map(one => [one.name, one.value]);
    const words = (form.elements.text?.value ?? "").toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0, all = 0;
    const blocks = target.querySelectorAll("[data-item]");
    for (const table of blocks.length ? [] : target.querySelectorAll("table")) {
      let left = 0;
      const fits = (cell) => wanted.every(([name, value]) => !(name in cell.dataset) || cell.dataset[name] === value);
      [...table.tHead.rows[0].cells].forEach((head, column) => {
        const hidden = !fits(head);
        if (head.hidden !== hidden) for (const row of table.rows) row.cells[column].hidden = hidden;
      });
      for (const row of table.tBodies[0].rows) {
        const text = words.length ? row.textContent.toLowerCase() : "";
        row.hidden = !fits(row) || !words.every(word => text.includes(word));
        all += 1;
        left += !row.hidden;
      }
      shown += left;
      const block = table.closest("[data-block]");
      if (block) block.hidden = left === 0;
    }
    for (const block of blocks) {
      const text = words.length ? block.textContent.toLowerCase() : "";
      block.hidden = !wanted.every(([name, value]) => !(name in block.dataset) || block.dataset[name] === value)
        || !words.every(word => text.includes(word));
      all += 1;
      shown += !block.hidden;
    }
    if (found) found.textContent = `${shown} of ${all} ${form.dataset.what}`;
  };
  form.addEventListener("input", apply);
  form.addEventListener("submit", event => event.preventDefault());
  apply();
}
