"use strict";
// Tables: sorted by a click or by Enter on a heading; rows, columns and blocks chosen by a form beside them. Filters and
// the order of tables are kept in the address: #task=winoground&sort=zero_shot-table:model:up.
const stored = new URLSearchParams();
const store = (name, value) => {
  if (value === "") stored.delete(name); else stored.set(name, value);
  const plain = location.href.split("#")[0];
  history.replaceState(null, "", stored.size ? `${plain}#${stored}` : plain);
  addresses();
};
// Links of cite boxes: the address of the page with its filters and, where it opens, the table.
const addresses = () => {
  for (const link of document.querySelectorAll(".cite a")) {
    const id = link.closest("[data-block]").querySelector("[id]").id;
    link.href = `#${stored.size ? new URLSearchParams([...stored, ["table", id]]) : id}`;
    link.textContent = link.href;
  }
};
// A link to a group (#group=TASK,ID) or to a section is not a state.
const state = () => new URLSearchParams(/^#(?!group=).*=/.test(location.hash) ? location.hash.slice(1) : "");
const named = (table, head) => `${table.id}:${head.dataset.task ?? head.dataset.metric ?? head.textContent.trim()}`;

const sortBy = (table, column, down) => {
  const heads = [...table.tHead.rows[0].cells], numeric = heads[column].classList.contains("number");
  for (const head of heads) head.setAttribute("aria-sort", "none");
  heads[column].setAttribute("aria-sort", down ? "descending" : "ascending");
  const value = row => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
  const part = row => row.classList.contains("limited"); // runs on a part of a task stay below all others
  const rows = [...table.tBodies[0].rows].sort((a, b) => {
    if (part(a) !== part(b)) return part(a) - part(b);
    const x = value(a), y = value(b);
    if (x === "" || y === "") return (x === "") - (y === "");
    const compared = numeric ? x - y : x.localeCompare(y, "en", { numeric: true });
    return down ? -compared : compared;
  });
  // Ranks are those of the column by which rows are sorted.
  if (rows.some(row => "rank" in row.cells[column].dataset)) {
    table.ranked = column;
    for (const row of rows) {
      const rank = row.querySelector(".rank");
      rank.textContent = rank.dataset.value = row.cells[column].dataset.rank ?? "";
    }
  }
  table.tBodies[0].append(...rows);
  draw(table);
};

// Plots of the shown rows that rank, by the column by which they do: against size, time, or the cost of a method.
const short = x => x >= 9 ? `${+(10 ** (x - 9)).toPrecision(2)}B` : x >= 6 ? `${+(10 ** (x - 6)).toPrecision(2)}M` : `${+(10 ** x).toPrecision(2)}`;
const draw = table => {
  for (const figure of table.closest("[data-block]")?.querySelectorAll("figure.plot") ?? []) {
    const [svg, words] = figure.children, over = figure.dataset.over;
    const at = +figure.dataset.at || table.ranked, head = table.tHead.rows[0].cells[at];
    const rows = [...table.tBodies[0].rows].filter(row => !row.hidden && row.cells[at].dataset.value);
    const all = rows.filter(row => row.querySelector(".rank").textContent).map(row => {
      const cell = row.cells[at], [y, low = y, high = y] = [cell.dataset.value, ...cell.dataset.ends?.split(" ") ?? []].map(end => 100 * end);
      const x = over === "date" ? Date.parse(cell.dataset.date) : Math.log10(row.querySelector(`.${over}`).dataset.value);
      return { x, y, low, high, name: row.querySelector("th").dataset.value, of: row.dataset };
    });
    const points = all.filter(({ x }) => Number.isFinite(x)).sort((one, two) => one.x - two.x || two.y - one.y);
    // Gains are compared within one task and model.
    figure.hidden = points.length < 5 || points[0].x === points.at(-1).x || new Set(all.map(({ of }) => `${of.task} ${of.model}`)).size > 1;
    if (figure.hidden) continue;
    const width = Math.min(680, figure.clientWidth), height = 300, bottom = height - 34, left = 36;
    const edges = values => [Math.min(...values), Math.max(...values)];
    const [x0, x1] = edges(points.map(({ x }) => x)), [y0, y1] = edges(points.flatMap(({ low, high }) => [low, high]));
    const span = Math.max(10, y1 - y0), X = x => left + 10 + (width - left - 60) * (x - x0) / (x1 - x0 || 1);
    const Y = y => bottom - (bottom - 20) * (y - y0) / span;
    const add = (tag, about, text = "") => {
      const node = document.createElementNS(svg.namespaceURI, tag);
      for (const [key, value] of Object.entries(about)) node.setAttribute(key, value);
      node.append(text);
      svg.append(node);
    };
    const level = (y, name, kind) => {
      add("path", { d: `M${left} ${Y(y)}H${width}`, class: kind });
      add("text", kind ? { x: width, y: Y(y) - 3, class: "end" } : { x: left - 6, y: Y(y) + 4, class: "end" }, name);
    };
    svg.replaceChildren();
    for (const [key, value] of Object.entries({ width, height })) svg.setAttribute(key, value);
    const step = [2, 5, 10, 20].find(step => span / step < 7);
    for (let y = Math.ceil(y0 / step) * step; y <= y0 + span; y += step) level(y, y);
    for (const row of rows.filter(row => row.classList.contains("reference"))) {
      const y = 100 * row.cells[at].dataset.value;
      if (y >= y0 && y <= y0 + span) level(y, row.querySelector("th").dataset.value, "dash");
    }
    for (const part of [0, 1, 2, 3]) {
      const x = x0 + part * (x1 - x0) / 3;
      add("text", { x: X(x), y: bottom + 18, class: "middle" }, over === "date" ? new Date(x).toISOString().slice(0, 7) : short(x));
    }
    add("text", { x: 0, y: 10 }, `${[...head.querySelectorAll("a, button")].map(part => part.textContent).join(" ")}, %`);
    for (const { x, low, high } of points) add("path", { d: `M${X(x)} ${Y(low)}V${Y(high)}`, class: "bar" });
    // Points that no earlier one surpasses have a label, unless it would cover another label.
    const sign = "lower" in head.dataset ? -1 : 1, named = [];
    let best = -Infinity;
    for (const { x, y, name, of } of points) {
      add("circle", { cx: X(x), cy: Y(y), r: 4, class: of.standing ?? "run" });
      if (sign * y <= best) continue;
      best = sign * y;
      if (named.some(other => Math.abs(Y(y) - other.y) < 12 && X(x) - other.x < 160)) continue;
      named.push({ x: X(x), y: Y(y) });
      add("text", X(x) > 0.6 * width ? { x: X(x) - 7, y: Y(y) - 5, class: "end" } : { x: X(x) + 7, y: Y(y) - 5 }, name.slice(0, 30));
    }
    const of = new Set(all.map(({ name }) => name)), known = new Set(points.map(({ name }) => name)), without = of.size - known.size;
    words.textContent = `${words.dataset.words} ${without} of ${of.size} ${words.dataset.of} not shown: ${over} unknown.`;
  }
};

for (const table of document.querySelectorAll("table.sortable")) {
  table.by = table.ranked = [...table.tHead.rows[0].cells].findIndex(head => head.ariaSort !== "none");
  [...table.tHead.rows[0].cells].forEach((head, column) => head.querySelector("button")?.addEventListener("click", () => {
    const before = head.getAttribute("aria-sort");
    // The largest number first, but the first name first.
    const down = before === "none" ? head.classList.contains("number") : before === "ascending";
    sortBy(table, column, down);
    if (table.id) store("sort", `${named(table, head)}:${down ? "down" : "up"}`);
  }));
}

// The shown rows and columns of a table as a file.
const escapes = { "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "±": "$\\pm$", "†": "$^\\dagger$", "‡": "$^\\ddagger$" };
const written = {
  csv: lines => lines.map(line => line.map(({ text }) => {
    const safe = /^[=+\-@\uff1d\uff0b\uff0d\uff20]/.test(text) && isNaN(text) ? `'${text}` : text; // no formula
    return /[",\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  }).join(",") + "\n").join(""),
  tex: lines => {
    const [head, ...rows] = lines.map(line => line.map(({ text, best }) => {
      const plain = text.replace(/[\\~^±†‡&%$#_{}]/g, letter => escapes[letter] ?? `\\${letter}`);
      return best ? `\\textbf{${plain}}` : plain;
    }).join(" & ") + " \\\\\n");
    const columns = lines[0].map(({ number }) => number ? "r" : "l").join("");
    return `\\begin{tabular}{${columns}}\n\\toprule\n${head}\\midrule\n${rows.join("")}\\bottomrule\n\\end{tabular}\n`;
  },
};
const view = table => [...table.rows].filter(row => !row.hidden).map(row => [...row.cells].filter(cell => !cell.hidden).map(cell => {
  const copy = cell.cloneNode(true), number = cell.classList.contains("number");
  if (number) for (const node of copy.querySelectorAll("small:not(.spread)")) node.remove();
  for (const node of copy.querySelectorAll("*")) node.before(" ");
  const text = copy.textContent.trim().replace(/\s+/g, " ");
  return { text: text === "-" ? "" : text, number, best: cell.classList.contains("best") };
}));
for (const button of document.querySelectorAll("[data-save]")) button.addEventListener("click", () => {
  const table = button.closest("[data-block]").querySelector("table"), kind = button.dataset.save, file = document.createElement("a");
  file.href = `data:text/plain;charset=utf-8,${encodeURIComponent(written[kind](view(table)))}`;
  file.download = `${location.pathname.split("/").pop().replace(/\.html$/, "")}-${table.id.replace(/-table$/, "")}.${kind}`;
  file.click();
});

const MOST = 12; // columns of tasks of a table; a chosen task is shown in any case
for (const form of document.querySelectorAll("form[data-for]")) {
  form.hidden = false; // without this script it would do nothing
  const tables = document.getElementById(form.dataset.for).querySelectorAll("table");
  const controls = [...form.elements].filter(one => one.name), search = form.elements.text;
  const apply = () => {
    const wanted = controls.filter(one => one !== search && one.value !== "").map(one => [one.name, one.value]);
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = part => wanted.every(([name, value]) => !(name in part.dataset) || part.dataset[name] === value);
    let shown = 0, total = 0;
    const chosen = wanted.some(([name]) => name === "task");
    for (const table of tables) {
      const heads = [...table.tHead.rows[0].cells], tasks = heads.filter(head => head.dataset.task);
      heads.forEach((head, column) => {
        const hidden = !fits(head) || (!chosen && tasks.indexOf(head) >= MOST);
        if (head.hidden !== hidden) for (const row of table.rows) row.cells[column].hidden = hidden;
      });
      // A chosen task ranks, else the first one does.
      const shownTasks = tasks.filter(head => !head.hidden).map(head => head.cellIndex), by = shownTasks[0];
      if (by && table.by !== by) {
        table.by = by;
        sortBy(table, by, !("lower" in heads[by].dataset));
      }
      const rows = [...table.tBodies[0].rows];
      for (const row of rows) {
        const isFound = fits(row) && words.every(word => row.textContent.toLowerCase().includes(word));
        const isEmpty = tasks.length && !shownTasks.some(column => row.cells[column].dataset.value);
        row.hidden = isEmpty || !(isFound || row.classList.contains("reference")); // chance and humans stay
      }
      const of = rows.filter(row => !row.classList.contains("reference")), left = of.filter(row => !row.hidden).length;
      table.closest("[data-block]")?.toggleAttribute("hidden", left === 0);
      [shown, total] = [shown + left, total + of.length];
      draw(table);
    }
    form.querySelector("output").textContent = `${shown} of ${total} ${form.dataset.what}`;
  };
  const restore = () => {
    const given = state();
    for (const [name, value] of given) if (name !== "table") stored.set(name, value);
    addresses();
    for (const one of controls) {
      one.value = given.get(one.name) ?? "";
      if (one.selectedIndex === -1) one.value = ""; // an option that does not exist
    }
    apply();
    const [, wanted, way] = /^(.*):(up|down)$/.exec(given.get("sort") ?? "") ?? [];
    for (const table of way ? document.querySelectorAll("table.sortable[id]") : []) {
      const column = [...table.tHead.rows[0].cells].findIndex(head => named(table, head) === wanted);
      if (column >= 0) sortBy(table, column, way === "down");
    }
    document.getElementById(given.get("table"))?.scrollIntoView();
  };
  form.addEventListener("input", event => {
    store(event.target.name, event.target.value);
    if (event.target.name === "task") store("sort", "");
    apply();
  });
  form.addEventListener("submit", event => event.preventDefault());
  addEventListener("hashchange", () => { if (state().size) restore(); });
  restore();
}

// The groups browser. Everything from data goes into the page as text, never as markup.
const browse = form => {
  const PAGE = 12, YES = "\u2713", NO = "\u2717";
  const field = form.elements, cards = document.getElementById("cards"), found = document.getElementById("found");
  const view = { chosen: [], page: 0 };
  const make = (tag, about = {}, ...children) => {
    const node = document.createElement(tag);
    for (const [key, value] of Object.entries(about)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  };
  // Control characters are shown by their symbols, so that a caption with one does not look like another without.
  const plain = text => String(text).toWellFormed().replace(/[\u0000-\u001f]/g, c => String.fromCharCode(0x2400 + c.charCodeAt(0)))
    .replace(/[\u007f-\u009f\u2028\u2029]/g, "\ufffd");
  const quoted = text => make("bdi", { dir: "auto" }, plain(text));
  const words = name => name.replaceAll("_", " ");
  const percent = value => value === null || value === undefined ? "-" : String(+(100 * value).toFixed(1));
  const options = (select, pairs, kept) => {
    select.replaceChildren(...pairs.map(([value, text]) => make("option", { value }, text)));
    if (pairs.some(([value]) => value === kept)) select.value = kept;
  };

  // --- what a group says: [id, captions, images, tags, methods]; a method's row is [scores, matching, tie, margin, metrics, answers]
  const methodAt = name => view.set.methods.findIndex(one => one.name === name);
  const rowsOf = (group, at) => at < 0 ? [] : (group[4][at] ?? []).filter(Boolean);
  const rightOf = rows => {
    const known = rows.map(row => row[4][+field.metric.value]).filter(value => value !== null);
    return known.length ? known.filter(value => value === 1).length * 2 > known.length : null;
  };
  const beforeAt = () => Math.max(0, methodAt("none"));
  const afterAt = () => field.after.value === "" ? -1 : +field.after.value;
  const facts = group => {
    const before = rowsOf(group, beforeAt()), after = rowsOf(group, afterAt());
    const raw = rightOf(before), now = after.length ? rightOf(after) : null;
    return { before, after, raw, now, last: after.length ? now : raw, tied: [...before, ...after].some(row => row[2]) };
  };
  const KINDS = {
    all: () => true,
    correct: f => f.last === true,
    incorrect: f => f.last === false,
    "flipped to correct": f => f.raw === false && f.now === true,
    "flipped to incorrect": f => f.raw === true && f.now === false,
    tied: f => f.tied,
  };

  const load = () => {
    const block = document.getElementById(`set-${field.set.value}`), thumbnails = document.getElementById(block.dataset.thumbnails);
    view.set = JSON.parse(block.textContent);
    view.noun = block.dataset.noun;
    view.images = JSON.parse(thumbnails.textContent);
    document.getElementById("thumbnails").textContent = `Images: ${plain(thumbnails.dataset.why)}.`;
    const kept = field.metric.selectedOptions[0]?.textContent ?? "group match", names = view.set.metrics.map(words);
    options(field.metric, names.map((name, at) => [String(at), name]), String(Math.max(0, names.indexOf(kept))));
    const later = view.set.methods.map((one, at) => [String(at), one.words]).filter(([at]) => +at !== beforeAt());
    options(field.after, later.length ? later : [["", "nothing"]], String(methodAt("ttm")));
    view.text = new Map(view.set.groups.map(group => [group, [group[0], ...group[1], ...group[2], ...group[3].filter(Boolean)].join("\n").normalize("NFKC").toLowerCase()]));
  };
  const apply = () => {
    const wanted = field.text.value.normalize("NFKC").toLowerCase().split(/\s+/).filter(Boolean), kind = field.kind.value || "all";
    const fitting = view.set.groups.filter(group => wanted.every(word => view.text.get(group).includes(word)))
      .filter(group => afterAt() < 0 || rowsOf(group, afterAt()).length) // held-out numbers are of a part of the groups
      .map(group => [group, facts(group)]);
    options(field.kind, Object.entries(KINDS).map(([name, fits]) => [name, `${name} (${fitting.filter(([, about]) => fits(about)).length})`]), kind);
    view.chosen = fitting.filter(([, about]) => KINDS[kind](about));
    show(0);
  };

  // --- one page of cards
  const show = page => {
    view.page = page;
    const start = page * PAGE, part = view.chosen.slice(start, start + PAGE), pages = Math.max(1, Math.ceil(view.chosen.length / PAGE));
    const which = view.chosen.length ? `${view.chosen.length} of` : "none of";
    found.textContent = `${which} ${view.set.groups.length} ${view.noun}${part.length ? `, showing ${start + 1} to ${start + part.length}` : ""}`;
    document.getElementById("page").textContent = `page ${page + 1} of ${pages}`;
    for (const button of document.querySelectorAll("[data-go]")) button.disabled = page === (button.dataset.go < 0 ? 0 : pages - 1);
    cards.replaceChildren(...part.map(([group, about]) => card(group, about)));
  };
  const badge = (right, name) => make("span", { class: `badge ${right === null ? "" : right ? "good" : "bad"}` }, `${name} ${right === null ? "undefined" : right ? `${YES} correct` : `${NO} incorrect`}`);
  const card = (group, about) => {
    const [id, captions, images] = group, before = view.set.methods[beforeAt()].words, after = view.set.methods[afterAt()]?.words;
    const link = make("a", { href: `#${address(id)}`, class: "where", "aria-label": `link to ${plain(id)}` }, "#");
    const head = make("h3", {}, quoted(id), link, badge(about.raw, before));
    if (about.after.length) head.append("\u2192", badge(about.now, after));
    if (about.tied) head.append(make("span", { class: "badge" }, "tied"));
    const left = make("div", {}, make("div", { class: "pairs" }, ...images.map((name, at) => pair(name, at, captions[at]))));
    left.append(make("ul", { class: "others" }, ...captions.slice(images.length).map((text, at) => make("li", {}, make("span", { class: "where" }, `${images.length + at + 1} `), quoted(text)))));
    const right = make("div", { class: "matrices" });
    if (about.before[0]?.[0]) right.append(matrix(before, about.before));
    if (about.after[0]?.[0]) right.append(matrix(about.after.length > 1 ? `${after}, ${about.after.length} seeds` : after, about.after));
    if (about.before[0]?.[5]) right.append(answers(about.before[0][5]));
    const folded = make("details", {}, make("summary", {}, "Metrics, seeds and tags"));
    folded.addEventListener("toggle", () => { if (folded.childElementCount === 1) folded.append(...everything(group)); });
    return make("li", {}, make("article", { class: "group", "aria-label": `group ${plain(id)}` }, head, make("div", { class: "group-body" }, left, right), folded));
  };
  const pair = (name, at, caption) => {
    const shown = Object.hasOwn(view.images, name) ? make("img", { src: view.images[name], alt: `image ${at + 1}: ${plain(name)}`, loading: "lazy", title: plain(name) }) : quoted(name);
    return make("figure", { class: "pair" }, shown, make("figcaption", {}, make("span", { class: "where" }, `${at + 1} `), quoted(caption)));
  };
  const majority = rows => {
    const votes = new Map();
    for (const row of rows) votes.set(JSON.stringify(row[1]), (votes.get(JSON.stringify(row[1])) ?? 0) + 1);
    const [first, second] = [...votes].sort((a, b) => b[1] - a[1]);
    return second && second[1] === first[1] ? null : JSON.parse(first[0]);
  };
  const matrix = (name, rows) => {
    const scores = rows[0][0].map((line, i) => line.map((_, j) => rows.reduce((sum, row) => sum + row[0][i][j], 0) / rows.length));
    const matching = majority(rows), flat = scores.flat(), low = Math.min(...flat), span = Math.max(...flat) - low;
    const tied = rows.some(row => row[2]);
    // Where several captions are true of an image, it is given as many: a list for each image.
    const several = Array.isArray(matching?.[0]) ? matching[0].length : 1, isTrue = (i, j) => Math.floor(j / several) === i;
    const given = (i, j) => matching !== null && !tied && (several > 1 ? matching[i].includes(j) : matching[i] === j);
    const heads = scores[0].map((_, j) => make("th", { scope: "col" }, `caption ${j + 1}`));
    const lines = scores.map((line, i) => make("tr", {}, make("th", { scope: "row" }, `image ${i + 1}`), ...line.map((score, j) => {
      const cell = make("td", { class: `${given(i, j) ? "chosen" : ""} ${isTrue(i, j) ? "true" : ""}` }, score.toFixed(2));
      cell.style.setProperty("--share", span > 0 ? ((score - low) / span).toFixed(3) : "0");
      if (given(i, j)) cell.prepend(make("span", { "aria-hidden": "true" }, isTrue(i, j) ? `${YES} ` : `${NO} `), make("span", { class: "unseen" }, isTrue(i, j) ? "matched, correct " : "matched, incorrect "));
      return cell;
    })));
    const caption = make("caption", {}, matching === null ? `${name}: seeds disagree` : tied ? `${name}: tied` : name);
    return make("div", { class: "charts" }, make("table", { class: "heat" }, caption, make("thead", {}, make("tr", {}, make("td", {}), ...heads)), make("tbody", {}, ...lines)));
  };
  const answers = list => make("ul", {}, ...list.map(([question, prompt, answer, right]) =>
    make("li", {}, make("strong", {}, `${question} ${right ? YES : NO} `), quoted(prompt), make("br"), "answer: ", answer === null ? "refused" : quoted(answer))));
  const everything = group => {
    const columns = view.set.methods.flatMap((one, at) => (group[4][at] ?? []).map((row, index) => [row, one.words, one.seeds[index]])).filter(([row]) => row);
    const heads = columns.map(([, name, seed]) => make("th", { scope: "col", class: "number" }, name, make("small", {}, seed === null ? "\u00a0" : `seed ${seed}`)));
    const line = (name, cell) => make("tr", {}, make("th", { scope: "row" }, name), ...columns.map(([row]) => make("td", { class: "number" }, cell(row))));
    const body = view.set.metrics.map((name, at) => line(words(name), row => percent(row[4][at])));
    if (columns.some(([row]) => row[1])) body.push(line("caption of each image", row => row[2] ? "tied" : row[1].map(caption => String(caption).split(",").map(one => +one + 1).join("+")).join(" ")), line("margin", row => row[3]?.toFixed(3) ?? "-"));
    const table = make("table", {}, make("thead", {}, make("tr", {}, make("td", {}), ...heads)), make("tbody", {}, ...body));
    const facts = [...view.set.tags.map((tag, at) => [tag, group[3][at]]), ...group[2].map((name, at) => [`image ${at + 1}`, name])];
    const tags = facts.filter(([, value]) => value !== null).flatMap(([name, value]) => [make("dt", {}, plain(name)), make("dd", {}, quoted(value))]);
    return [make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Metrics of this group" }, table), make("dl", { class: "facts" }, ...tags)];
  };

  form.addEventListener("input", event => { if (event.target.name === "set") load(); apply(); });
  form.addEventListener("submit", event => event.preventDefault());
  document.querySelector(".pager").addEventListener("click", event => {
    if (!event.target.dataset.go) return;
    show(view.page + +event.target.dataset.go);
    found.scrollIntoView({ block: "nearest" });
  });
  // --- a link to one group: #group=TASK,ID
  const task = at => document.getElementById(`set-${at}`).dataset.task;
  const address = id => `group=${encodeURIComponent(task(field.set.value))},${encodeURIComponent(id)}`;
  const open = () => {
    const [wanted, id] = (location.hash.match(/^#group=([^,]*),(.*)$/) ?? []).slice(1).map(decodeURIComponent);
    const sets = [...field.set.options].map(option => option.value).filter(at => task(at) === wanted);
    if (id === undefined || !sets.length) return;
    const kept = field.set.value;
    form.reset();
    field.set.value = sets.includes(kept) ? kept : sets[0];
    load();
    field.kind.value = "all";
    apply();
    const at = view.chosen.findIndex(([group]) => group[0] === id);
    if (at < 0) return;
    show(Math.floor(at / PAGE));
    const card = cards.children[at % PAGE];
    card.firstChild.classList.add("linked");
    card.scrollIntoView({ block: "start" });
  };
  load();
  apply();
  addEventListener("hashchange", open);
  open();
};
if (document.getElementById("browser")) browse(document.getElementById("browser"));
