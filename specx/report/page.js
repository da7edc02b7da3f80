"use strict";
// Shows the numbers of the token under the pointer, with the focus, or clicked. Text from a trace
// is only ever set as text.

function make(tag, text, parent) {
  const element = document.createElement(tag);
  if (text !== null) element.textContent = text;
  if (parent) parent.append(element);
  return element;
}

function shown(value) {
  return value === null || value === undefined ? "-" : String(value);
}

function table(caption, head, rows, parent) {
  const element = make("table", null, parent);
  make("caption", caption, element);
  const top = make("tr", null, make("thead", null, element));
  for (const name of head) make("th", name, top).scope = "col";
  const body = make("tbody", null, element);
  for (const [name, ...cells] of rows) {
    const row = make("tr", null, body);
    make("th", name, row).scope = "row";
    for (const cell of cells) make("td", shown(cell), row);
  }
}

function fate(draft, place, n) {
  if (place < n) return "accepted";
  return place === n ? "rejected" : "untested";
}

function verdict(round, place, panel) {
  const line = make("p", null, panel);
  if (place < round.n) {
    line.textContent = round.draft[place][5] < round.draft[place][4]
      ? `Drafted and accepted: uniform ${shown(round.draft[place][5])} < chance ${shown(round.draft[place][4])}.`
      : "Drafted and accepted: a later token of the draft carried it.";
  } else if (!round.draft.length) {
    line.textContent = "Drawn by the verifier: nothing had been drafted.";
  } else if (round.n === round.draft.length) {
    line.textContent = "Bonus: the whole draft was accepted, and the verifier drew one more.";
  } else {
    const lost = round.draft[place];
    line.textContent = "Correction: the verifier drew it in the place of ";
    make("bdi", lost[0], line);
    line.append(`, rejected: uniform ${shown(lost[5])} against chance ${shown(lost[4])}.`);
  }
}

function numbers(round, place) {
  const drafted = round.draft[place];
  if (place < round.n) {
    const [, , p, q, chance, uniform, overlap, target, draft] = drafted;
    return [
      ["P, verifier", p], ["Q, drafter", q], ["P / Q", (p / q).toPrecision(4)],
      ["chance to pass", chance], ["uniform", uniform], ["sum min(P, Q)", overlap],
      ...sure("verifier", target), ...sure("drafter", draft),
    ];
  }
  const [, , p, q, uniform, target] = round.last;
  return [
    ["P, verifier", p], ["Q, drafter", q], ["uniform that drew it", uniform],
    ...(drafted ? [["sum min(P, Q)", drafted[6]]] : []),
    ...sure("verifier", target), ...(drafted ? sure("drafter", drafted[8]) : []),
  ];
}

function sure(side, found) {
  if (!found) return [];
  return [
    [`${side}'s entropy, nats`, found[0]],
    [`${side}'s entropy at temperature 1`, found[1]],
    [`${side}'s margin, nats`, found[2]],
  ];
}

function show(panel, data, at) {
  const [index, place] = at.split(".").map(Number);
  const round = data.rounds[index];
  const [text, id] = place < round.n ? round.draft[place] : round.last;
  panel.replaceChildren();
  const title = make("h3", "Token ", panel);
  make("bdi", text, title);
  title.append(` (id ${id})`);
  verdict(round, place, panel);
  table("This token", ["figure", "value"], numbers(round, place), panel);
  if (round.draft.length) {
    table(
      `Round ${index + 1}, ${data.rule}, from position ${round.position}: drafted ${round.draft.length} (${round.reason})`,
      ["draft", "P", "Q", "chance", "uniform", "fate"],
      round.draft.map((d, i) => [d[0], d[2], d[3], d[4], d[5], fate(d, i, round.n)]),
      panel,
    );
  }
  const times = Object.entries(round.ms).map(([part, ms]) => `${part} ${ms} ms`);
  make("p", times.join(", "), panel);
}

for (const text of document.querySelectorAll(".text")) {
  const data = JSON.parse(document.getElementById(`${text.dataset.trace}-data`).textContent);
  const panel = text.parentElement.querySelector(".panel");
  let chosen = text.querySelector(".t");
  const choose = (token) => {
    if (!token || !token.dataset.at) return;
    chosen.tabIndex = -1;
    chosen.removeAttribute("aria-pressed");
    chosen = token;
    token.tabIndex = 0;
    token.setAttribute("aria-pressed", "true");
    show(panel, data, token.dataset.at);
  };
  text.addEventListener("mouseover", (event) => choose(event.target.closest(".t")));
  text.addEventListener("focusin", (event) => choose(event.target.closest(".t")));
  text.addEventListener("click", (event) => choose(event.target.closest(".t")));
  text.addEventListener("keydown", (event) => {
    const steps = { ArrowRight: "nextElementSibling", ArrowLeft: "previousElementSibling" };
    const next = steps[event.key] && chosen[steps[event.key]];
    if (!next) return;
    event.preventDefault();
    next.focus();
  });
}

for (const input of document.querySelectorAll("input")) {
  input.addEventListener("change", () => {
    const mark = document.querySelector("input[name=mark]:checked").value;
    document.body.classList.toggle("by-entropy", mark === "entropy");
    document.body.classList.toggle(
      "show-rejected", document.getElementById("rejected").checked,
    );
  });
}
