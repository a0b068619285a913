// Opened by a link, a folded part unfolds.
const unfold = () => {
  const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target && target.tagName === "DETAILS") target.open = true;
};
addEventListener("hashchange", unfold);
unfold();

// The groups browser. Everything from data goes into the page as text, never as markup.
(() => {
  const form = document.getElementById("browser");
  if (!form) return;
  const PAGE = 12, YES = "\u2713", NO = "\u2717";
  const field = form.elements, cards = document.getElementById("cards"), found = document.getElementById("found");
  const state = { set: null, thumbnails: {}, chosen: [], page: 0 };

  const make = (tag, about = {}, ...children) => {
    const node = document.createElement(tag);
    for (const [key, value] of Object.entries(about)) key === "class" ? node.className = value : node.setAttribute(key, value);
    node.append(...children);
    return node;
  };
  // Control characters are shown by their symbols, so that a caption with one does not look like another without.
  const plain = text => String(text).replace(/[\u0000-\u001f]/g, c => String.fromCharCode(0x2400 + c.charCodeAt(0)))
    .replace(/[\u007f-\u009f\u2028\u2029\ud800-\udfff]/g, (c, at, all) => lone(c, at, all));
  const lone = (c, at, all) => {
    const code = c.charCodeAt(0);
    if (code < 0xd800) return "\ufffd";
    if (code < 0xdc00) return /[\udc00-\udfff]/.test(all[at + 1] ?? "") ? c : "\ufffd";
    return /[\ud800-\udbff]/.test(all[at - 1] ?? "") ? c : "\ufffd";
  };
  const quoted = text => make("bdi", { dir: "auto" }, plain(text));
  const words = name => name.replaceAll("_", " ");
  const options = (select, pairs, kept) => {
    select.replaceChildren(...pairs.map(([value, text]) => make("option", { value }, text)));
    if (pairs.some(([value]) => value === kept)) select.value = kept;
  };
  const percent = value => value === null || value === undefined ? "-" : String(+(100 * value).toFixed(1));

  // --- what a group says -------------------------------------------------------------------------------------
  const filterAt = name => state.set.filters.findIndex(one => one.name === name);
  const rowsOf = (group, at) => at < 0 || !group[4][at] ? [] : group[4][at].filter(Boolean);
  const pick = rows => field.seed.value === "" || rows.length < 2 ? rows : rows.slice(+field.seed.value, +field.seed.value + 1);
  const valueOf = (rows, metric) => {
    const known = rows.map(row => row[4][metric]).filter(value => value !== null);
    return known.length ? known.reduce((a, b) => a + b, 0) / known.length : null;
  };
  const rightOf = (rows, metric) => {
    const known = rows.map(row => row[4][metric]).filter(value => value !== null);
    return known.length ? known.filter(value => value === 1).length * 2 > known.length : null;
  };
  const beforeAt = () => Math.max(0, filterAt("none"));
  const afterAt = () => field.after.value === "" ? -1 : +field.after.value;
  const facts = group => {
    const metric = +field.metric.value, before = rowsOf(group, beforeAt()), after = pick(rowsOf(group, afterAt()));
    const raw = rightOf(before, metric), now = after.length ? rightOf(after, metric) : null;
    return { before, after, raw, now, last: after.length ? now : raw, tied: [...before, ...after].some(row => row[2]) };
  };
  const KINDS = {
    all: ["all", () => true],
    right: ["correct", f => f.last === true],
    wrong: ["incorrect", f => f.last === false],
    won: ["flipped to correct", f => f.raw === false && f.now === true],
    lost: ["flipped to incorrect", f => f.raw === true && f.now === false],
    tied: ["tied", f => f.tied],
  };

  // --- controls ----------------------------------------------------------------------------------------------
  const kinds = form.querySelector(".kinds");
  for (const [name, [text]] of Object.entries(KINDS)) {
    const input = make("input", { type: "radio", name: "kind", value: name });
    input.defaultChecked = name === "all";
    kinds.append(make("label", {}, input, make("span", {}, text), make("span", { "data-count": name })));
  }
  const load = () => {
    const block = document.getElementById(`set-${field.set.value}`), thumbnails = document.getElementById(block.dataset.thumbnails);
    state.set = JSON.parse(block.textContent);
    state.noun = block.dataset.noun;
    state.thumbnails = JSON.parse(thumbnails.textContent);
    document.getElementById("thumbnails").textContent = `Images: ${plain(thumbnails.dataset.why)}.`;
    const kept = field.metric.selectedOptions[0]?.textContent;
    options(field.metric, state.set.metrics.map((name, at) => [String(at), words(name)]));
    const preferred = [kept, "group match"].map(text => state.set.metrics.findIndex(name => words(name) === text)).find(at => at >= 0);
    field.metric.value = String(preferred ?? 0);
    const later = state.set.filters.map((one, at) => [String(at), one.words]).filter(([at]) => +at !== beforeAt());
    options(field.after, later.length ? later : [["", "nothing"]], String(filterAt("ttm")));
    options(field.tag, [["", "all"], ...state.set.tags.map((tag, at) => [String(at), plain(tag)])]);
    state.text = state.set.groups.map(group => [group[0], ...group[1], ...group[2], ...group[3].filter(Boolean)].join("\n").normalize("NFKC").toLowerCase());
    loadSeeds();
    loadValues();
  };
  const loadSeeds = () => {
    const seeds = afterAt() < 0 ? [] : state.set.filters[afterAt()].seeds;
    options(field.seed, [["", seeds.length > 1 ? "most of them" : "the only one"], ...(seeds.length > 1 ? seeds.map((seed, at) => [String(at), `seed ${seed}`]) : [])], field.seed.value);
  };
  const loadValues = () => {
    const counts = new Map();
    if (field.tag.value !== "") for (const group of state.set.groups) for (const value of valuesOf(group)) counts.set(value, (counts.get(value) ?? 0) + 1);
    const pairs = [...counts].sort(([a], [b]) => a.localeCompare(b, "en", { numeric: true })).map(([value, count]) => [value, `${plain(value)} (${count})`]);
    options(field.value, [["", "all"], ...pairs]);
    field.value.disabled = !pairs.length;
  };
  const valuesOf = group => (group[3][+field.tag.value] ?? "").split(", ").map(value => value || "(none)");

  const apply = () => {
    const wanted = field.text.value.normalize("NFKC").toLowerCase().split(/\s+/).filter(Boolean), value = field.value.value;
    const counts = Object.fromEntries(Object.keys(KINDS).map(name => [name, 0])), chosen = [];
    state.set.groups.forEach((group, at) => {
      if (!wanted.every(word => state.text[at].includes(word))) return;
      if (field.tag.value !== "" && value !== "" && !valuesOf(group).includes(value)) return;
      // Held-out numbers are of a part of the groups.
      if (afterAt() >= 0 && !rowsOf(group, afterAt()).length) return;
      const about = facts(group);
      for (const [name, [, fits]] of Object.entries(KINDS)) if (fits(about)) counts[name] += 1;
      if (KINDS[field.kind.value][1](about)) chosen.push([group, about]);
    });
    const changed = ([, about]) => about.now !== null && about.raw !== about.now;
    if (field.order.value === "flipped") chosen.sort((a, b) => changed(b) - changed(a));
    else if (field.order.value !== "task") {
      const margin = ([, about]) => about.before[0]?.[3] ?? Infinity, sign = field.order.value === "small" ? 1 : -1;
      chosen.sort((a, b) => sign * (margin(a) - margin(b)));
    }
    for (const node of kinds.querySelectorAll("[data-count]")) node.textContent = counts[node.dataset.count];
    state.chosen = chosen;
    state.page = 0;
    show();
  };

  // --- one page of cards -------------------------------------------------------------------------------------
  const pages = () => Math.max(1, Math.ceil(state.chosen.length / PAGE));
  const show = () => {
    const start = state.page * PAGE, part = state.chosen.slice(start, start + PAGE);
    found.textContent = state.chosen.length
      ? `${state.chosen.length} of ${state.set.groups.length} ${state.noun}, showing ${start + 1} to ${start + part.length}`
      : `none of ${state.set.groups.length} ${state.noun}`;
    document.getElementById("page").textContent = `page ${state.page + 1} of ${pages()}`;
    for (const button of document.querySelectorAll("[data-go]"))
      button.disabled = ["first", "previous"].includes(button.dataset.go) ? state.page === 0 : state.page >= pages() - 1;
    cards.replaceChildren(...part.map(([group, about]) => card(group, about)));
  };
  const badge = (right, text) => make("span", { class: `badge ${right === null ? "plain" : right ? "good" : "bad"}` }, `${text} ${right === null ? "undefined" : right ? `${YES} correct` : `${NO} incorrect`}`);

  const card = (group, about) => {
    const [id, captions, images] = group, seedWords = field.seed.selectedOptions[0].textContent;
    const link = make("a", { href: `#${address(id)}`, class: "where", "aria-label": `link to ${plain(id)}` }, "#");
    const head = make("h3", {}, quoted(id), link, badge(about.raw, beforeName()));
    const afterName = afterAt() < 0 ? "" : state.set.filters[afterAt()].words;
    if (about.after.length) head.append(make("span", { class: "then" }, "\u2192", badge(about.now, afterName)));
    if (about.tied) head.append(make("span", { class: "badge plain" }, "tied"));
    const pairs = make("div", { class: "pairs" });
    images.forEach((name, at) => pairs.append(pair(name, at, captions[at])));
    const left = make("div", {}, pairs), more = captions.slice(images.length);
    if (more.length) left.append(make("ul", { class: "others" }, ...more.map((text, at) => make("li", {}, make("span", { class: "where" }, `${images.length + at + 1} `), quoted(text)))));
    const right = make("div", { class: "matrices" });
    if (about.before[0]?.[0]) right.append(matrix(beforeName(), about.before));
    if (about.after[0]?.[0]) right.append(matrix(about.after.length > 1 ? `${afterName}, ${about.after.length} seeds` : afterName, about.after, seedWords));
    if (about.before[0]?.[5]) right.append(answers(about.before[0][5]));
    const folded = make("details", {}, make("summary", {}, "Metrics, seeds and tags"));
    folded.addEventListener("toggle", () => { if (folded.open && folded.childElementCount === 1) folded.append(...everything(group)); });
    return make("li", {}, make("article", { class: "group", "aria-label": `group ${plain(id)}` }, head, make("div", { class: "group-body" }, left, right), folded));
  };
  const beforeName = () => state.set.filters[beforeAt()].words;

  const pair = (name, at, caption) => {
    const address = Object.hasOwn(state.thumbnails, name) ? state.thumbnails[name] : null;
    const figure = make("figure", { class: "pair" });
    if (address === null) figure.append(make("span", { class: "name" }, quoted(name)));
    else {
      const image = make("img", { src: address, alt: `image ${at + 1}: ${plain(name)}`, loading: "lazy", title: plain(name) });
      figure.append(address.startsWith("data:") ? image : make("a", { href: address }, image));
    }
    figure.append(make("figcaption", {}, make("span", { class: "where" }, `${at + 1} `), quoted(caption)));
    return figure;
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
    const given = (i, j) => several > 1 ? matching[i].includes(j) : matching[i] === j;
    const table = make("table", { class: "heat" }, make("caption", {}, matching === null ? `${name}: seeds disagree` : tied ? `${name}: tied` : name));
    table.append(make("thead", {}, make("tr", {}, make("th", { scope: "col" }, make("span", { class: "unseen" }, "image")), ...scores[0].map((_, j) => make("th", { scope: "col" }, `caption ${j + 1}`)))));
    const body = make("tbody");
    scores.forEach((line, i) => {
      const row = make("tr", {}, make("th", { scope: "row" }, `image ${i + 1}`));
      line.forEach((score, j) => {
        const chosen = matching !== null && given(i, j) && !tied, cell = make("td", { class: `${chosen ? "chosen" : ""} ${isTrue(i, j) ? "true" : ""}` });
        cell.style.setProperty("--share", span > 0 ? ((score - low) / span).toFixed(3) : "0");
        if (chosen) cell.append(make("span", { class: "mark", "aria-hidden": "true" }, isTrue(i, j) ? YES : NO));
        cell.append(score.toFixed(2));
        if (chosen) cell.append(make("span", { class: "unseen" }, isTrue(i, j) ? " matched, correct" : " matched, incorrect"));
        row.append(cell);
      });
      body.append(row);
    });
    table.append(body);
    return make("div", { class: "matrix" }, table);
  };

  const answers = list => make("ul", { class: "answers" }, ...list.map(([question, prompt, answer, order, chosen, right]) =>
    make("li", {}, make("strong", {}, `${question} ${right ? YES : NO} `), quoted(prompt), make("br"), "answer: ", answer === null ? "refused" : quoted(answer))));

  const everything = group => {
    const table = make("table"), head = make("tr", {}, make("th", { scope: "col" }, ""));
    const columns = [];
    state.set.filters.forEach((one, at) => (group[4][at] ?? []).forEach((row, index) => {
      if (!row) return;
      const seed = one.seeds[index];
      columns.push(row);
      head.append(make("th", { scope: "col", class: "number" }, one.words, make("small", {}, seed === null || seed === undefined ? "\u00a0" : `seed ${seed}`)));
    }));
    const line = (name, cell) => make("tr", {}, make("th", { scope: "row" }, name), ...columns.map(row => make("td", { class: "number" }, cell(row))));
    const body = make("tbody", {}, ...state.set.metrics.map((name, at) => line(words(name), row => percent(row[4][at]))));
    if (columns.some(row => row[1])) {
      body.append(line("caption of each image", row => row[2] ? "tied" : row[1].map(caption => caption + 1).join(" ")));
      body.append(line("margin", row => row[3] === null ? "-" : row[3].toFixed(3)));
    }
    table.append(make("thead", {}, head), body);
    const tags = make("dl", { class: "facts" });
    state.set.tags.forEach((tag, at) => { if (group[3][at] !== null) tags.append(make("dt", {}, plain(tag)), make("dd", {}, quoted(group[3][at]))); });
    group[2].forEach((name, at) => tags.append(make("dt", {}, `image ${at + 1}`), make("dd", {}, quoted(name))));
    return [make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Metrics of this group" }, table), tags];
  };

  form.addEventListener("input", event => {
    if (event.target.name === "set") load();
    if (event.target.name === "after") loadSeeds();
    if (event.target.name === "tag") loadValues();
    apply();
  });
  form.addEventListener("submit", event => event.preventDefault());
  document.querySelector(".pager").addEventListener("click", event => {
    const go = event.target.dataset?.go;
    if (!go) return;
    state.page = { first: 0, previous: state.page - 1, next: state.page + 1, last: pages() - 1 }[go];
    show();
    found.scrollIntoView({ block: "nearest" });
  });
  // --- a link to one group: #group=TASK,ID -------------------------------------------------------------------------
  const task = at => document.getElementById(`set-${at}`).dataset.task;
  const address = id => `group=${encodeURIComponent(task(field.set.value))},${encodeURIComponent(id)}`;
  const open = () => {
    const [wanted, id] = (location.hash.match(/^#group=([^,]*),(.*)$/) ?? []).slice(1).map(decodeURIComponent);
    if (id === undefined) return;
    const sets = [...field.set.options].map(option => option.value).filter(at => task(at) === wanted);
    if (!sets.length) return;
    const kept = field.set.value;
    form.reset();
    field.set.value = sets.includes(kept) ? kept : sets[0];
    load();
    apply();
    const at = state.chosen.findIndex(([group]) => group[0] === id);
    if (at < 0) return;
    state.page = Math.floor(at / PAGE);
    show();
    const found = cards.children[at % PAGE];
    found.classList.add("linked");
    found.scrollIntoView({ block: "start" });
  };
  load();
  apply();
  addEventListener("hashchange", open);
  open();
})();
