"use strict";
// Reads the data element, fills the two run menus and the list, shows one problem at a time.
// A chat is [problem, number, outcomes, sends, uses, asks, agrees, text, ...]; texts carry marks as control characters.
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const MARKS = { "\u0001": ["mark", "sent", "sent: a private number"], "\u0002": ["mark", "used", "used: the partner's number"],
  "\u0003": ["b", "private", "private: the partner cannot see it"] };
const FIRST_TEXT = 7;

function element(name, className, ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...children);  // strings become text, never markup
  return made;
}

function marked(text) {
  const out = [];
  let open = null;
  for (const part of text.split(/([\u0001-\u0004])/)) {
    if (part === "\u0004") open = null;
    else if (part in MARKS) open = MARKS[part];
    else if (part && open) { const made = element(open[0], open[1], part); made.title = open[2]; out.push(made); }
    else if (part) out.push(part);
  }
  return out;
}

// Filters: each is a menu and a test of (left chat, right chat); a missing chat fails every test but "any".
const right = (chat) => [...chat[2]].filter((digit) => digit === "1").length;
const share = (value) => value === 100 ? "all" : value > 0 ? "some" : value === 0 ? "none" : "undefined";
const answers = (chat) => right(chat) === chat[2].length ? "all" : right(chat) > 0 ? "some" : "none";
const FILTERS = {
  "f-left": [["any", "all", "some", "none"], (l) => l && answers(l)],
  "f-right": [["any", "all", "some", "none"], (l, r) => r && answers(r)],
  "f-change": [["any", "better", "same", "worse"],
    (l, r) => l && r && (right(r) > right(l) ? "better" : right(r) < right(l) ? "worse" : "same")],
  "f-sends": [["any", "all", "some", "none"], (l, r) => r && share(r[3])],
  "f-uses": [["any", "all", "some", "none"], (l, r) => r && share(r[4])],
  "f-asks": [["any", "yes", "no"], (l, r) => r && (r[5] > 0 ? "yes" : "no")],
  "f-agrees": [["any", "yes", "no"], (l, r) => r && (r[6] ? "yes" : "no")],
};

function fill(select, entries) {
  select.replaceChildren(...entries.map(([value, text]) => { const made = element("option", "", text); made.value = value; return made; }));
}

const sets = new Map(data.sets.map((set) => [set.key, set]));
let pairs = [];   // [left chat or null, right chat or null], matched by problem and number
let found = [];   // those that pass the filters
let at = 0;

function match() {
  const table = new Map();
  for (const [side, id] of [[0, "left"], [1, "right"]]) {
    const set = sets.get(byId(id).value);
    for (const chat of set ? set.chats : []) {
      const key = chat[0] + "/" + chat[1];
      if (!table.has(key)) table.set(key, [null, null]);
      table.get(key)[side] = chat;
    }
  }
  pairs = [...table.values()];
}

const plain = (text) => text.replace(/[\u0001-\u0004]/g, "").toLowerCase();
function holds(pair, word) {
  const problem = data.problems[(pair[0] || pair[1])[0]];
  const texts = [problem.id, problem.question, problem.gold, ...problem.facts.flat()];
  for (const chat of pair) if (chat) texts.push(...chat.slice(FIRST_TEXT));
  return texts.some((text) => plain(text).includes(word));
}

function search() {
  const wanted = Object.entries(FILTERS).map(([id, [, test]]) => [byId(id).value, test]).filter(([value]) => value !== "any");
  const word = byId("search").value.trim().toLowerCase();
  found = pairs.filter((pair) => wanted.every(([value, test]) => test(...pair) === value) && (!word || holds(pair, word)));
  byId("active").textContent = wanted.length ? `(${wanted.length} on)` : "";
  byId("found").textContent = `${found.length} of ${pairs.length} chats`;
  const sign = (chat) => chat ? [...chat[2]].map((digit) => digit === "1" ? "✓" : "✗").join("") : "–";
  fill(byId("list"), found.map((pair, i) => [String(i), `${sign(pair[0])} → ${sign(pair[1])}  ${data.problems[(pair[0] || pair[1])[0]].id} #${(pair[0] || pair[1])[1] + 1}`]));
  go(0);
}

function side(set, chat) {
  const box = element("section", "side", element("h3", "", set.label));
  if (!chat) { box.append(element("p", "meta", "no chat on this problem")); return box; }
  const copies = [...new Set(set.order)].sort();
  const verdict = (copy) => chat[2][copies.indexOf(copy)] === "1";
  const line = element("p", "meta");
  copies.forEach((copy) => line.append(element("span", verdict(copy) ? "right" : "wrong", `${copy} ${verdict(copy) ? "right ✓" : "wrong ✗"} `)));
  const percent = (value) => value < 0 ? "–" : value + "%";
  line.append(`· sends ${percent(chat[3])} · uses ${percent(chat[4])} · ${chat[6] ? "agree" : "disagree"}`);
  box.append(line);
  [...set.order].forEach((copy, turn) => {
    const last = set.order.lastIndexOf(copy) === turn;
    const name = `turn ${copy.toLowerCase()}` + (last ? ` last ${verdict(copy) ? "right" : "wrong"}` : "");
    box.append(element("p", name, element("span", "who", copy + ": "), ...marked(chat[FIRST_TEXT + turn] ?? "")));
  });
  if (set.blocked) box.append(element("p", "meta", "Blocked: where a partner's words would stand, each copy saw (no message)."));
  return box;
}

function go(to) {
  at = Math.max(0, Math.min(found.length - 1, to));
  const target = byId("chat");
  if (!found.length) { target.replaceChildren(element("p", "", "No chat passes these filters.")); remember(); return; }
  byId("list").selectedIndex = at;
  const [left, after] = found[at];
  const problem = data.problems[(left || after)[0]];
  const facts = element("div", "facts", ...problem.facts.map((held, i) => element("div", "", element("h3", "", `${"ABCDEFGH"[i]} alone knows`), ...held.map((fact) => element("p", "", ...marked(fact))))));
  const sides = element("div", "sides", side(sets.get(byId("left").value), left), side(sets.get(byId("right").value), after));
  target.replaceChildren(element("h2", "", `${problem.question} `, element("span", "meta", `answer ${problem.gold} · ${problem.id}`)), facts, sides);
  remember();
}

// The address keeps what is shown, so that a chat can be linked to.
function remember() {
  const state = new URLSearchParams({ left: byId("left").value, right: byId("right").value });
  if (found.length) { const chat = found[at][0] || found[at][1]; state.set("chat", `${data.problems[chat[0]].id}/${chat[1]}`); }
  history.replaceState(null, "", "#" + state);
}

function recall() {
  const state = new URLSearchParams(location.hash.slice(1));
  for (const id of ["left", "right"]) if (sets.has(state.get(id))) byId(id).value = state.get(id);
  return state.get("chat");
}

function start() {
  for (const id of ["left", "right"]) fill(byId(id), data.sets.map((set) => [set.key, set.label]));
  for (const [id, [choices]] of Object.entries(FILTERS)) fill(byId(id), choices.map((choice) => [choice, choice]));
  const first = (part) => (data.sets.find((set) => set.key.includes(part)) || data.sets[0] || { key: "" }).key;
  byId("left").value = first("-base-");
  byId("right").value = first("-grpo-");
  const wanted = recall();
  match();
  search();
  const place = found.findIndex((pair) => { const chat = pair[0] || pair[1]; return `${data.problems[chat[0]].id}/${chat[1]}` === wanted; });
  if (place > 0) go(place);

  for (const id of ["left", "right"]) byId(id).addEventListener("change", () => { match(); search(); });
  for (const id of Object.keys(FILTERS)) byId(id).addEventListener("change", search);
  byId("search").addEventListener("input", search);
  byId("controls").addEventListener("submit", (event) => event.preventDefault());
  byId("reset").addEventListener("click", (event) => {
    event.preventDefault();
    for (const id of Object.keys(FILTERS)) byId(id).value = "any";
    byId("search").value = "";
    search();
  });
  byId("list").addEventListener("change", () => go(byId("list").selectedIndex));
  byId("back").addEventListener("click", () => go(at - 1));
  byId("next").addEventListener("click", () => go(at + 1));
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || ["INPUT", "SELECT"].includes(event.target.tagName)) return;
    if (event.key === "ArrowRight" || event.key === "j") go(at + 1);
    else if (event.key === "ArrowLeft" || event.key === "k") go(at - 1);
    else if (event.key === "/") byId("search").focus();
    else return;
    event.preventDefault();
  });
  let from = null;
  byId("chat").addEventListener("touchstart", (event) => { const t = event.changedTouches[0]; from = [t.clientX, t.clientY]; }, { passive: true });
  byId("chat").addEventListener("touchend", (event) => {
    const t = event.changedTouches[0];
    if (from && Math.abs(t.clientX - from[0]) > 60 && Math.abs(t.clientY - from[1]) < 40) go(at + (t.clientX < from[0] ? 1 : -1));
    from = null;
  }, { passive: true });
  document.documentElement.dataset.ready = String(Math.round(performance.now()));  // what the speed test reads
}

start();
