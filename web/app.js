/* SPDX-License-Identifier: MIT
 *
 * The page of the admin listener. It gets the state of the fleet as server-sent events and draws it. Every text from outside is set as text, never as markup. Elements are kept and
 * changed, so that a selection, a focus or a half-pressed button survives the next event.
 */
"use strict";

const SAMPLES = 60; /* of a replica's speed */
const SURE_MS = 3000; /* a cancel must be pressed twice within this time */
const SVG = "http://www.w3.org/2000/svg";

const byId = (id) => document.getElementById(id);

function make(tag, className, text) {
  const e = document.createElement(tag);
  if (className) e.className = className;
  if (text !== undefined) e.textContent = text;
  return e;
}

function setText(e, text) {
  if (e.textContent !== text) e.textContent = text;
}

function setClass(e, name) {
  if (e.className !== name) e.className = name;
}

/* ---- numbers for people ---- */

const count = (n) => (n === null || n === undefined ? "–" : n.toLocaleString("en"));
const rate = (n) => (n > 0 ? (n >= 1000 ? count(Math.round(n)) : n.toFixed(1)) : "");

function time(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60000) return `${(ms / 1000).toFixed(1)} s`;
  const m = Math.floor(ms / 60000);
  return m < 60 ? `${m}m ${String(Math.floor(ms / 1000) % 60).padStart(2, "0")}s` : `${Math.floor(m / 60)}h ${String(m % 60).padStart(2, "0")}m`;
}

/* ---- lists that keep their elements ---- */

function keyed(parent, build) {
  const kept = new Map();
  return (items, key) => {
    const seen = new Set();
    let before = null;
    for (const item of items) {
      const k = key(item);
      let part = kept.get(k);
      if (!part) {
        part = build(item);
        kept.set(k, part);
      }
      seen.add(k);
      const next = before ? before.nextSibling : parent.firstChild;
      if (part.element !== next) parent.insertBefore(part.element, next);
      part.update(item);
      before = part.element;
    }
    for (const [k, part] of kept)
      if (!seen.has(k)) {
        part.element.remove();
        kept.delete(k);
      }
  };
}

/* ---- replicas ---- */

function spark() {
  const svg = document.createElementNS(SVG, "svg"), area = document.createElementNS(SVG, "path"), line = document.createElementNS(SVG, "path");
  const values = [];
  svg.setAttribute("viewBox", `0 0 ${SAMPLES - 1} 20`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  area.setAttribute("class", "area");
  svg.append(area, line);
  return {
    svg,
    add(v) {
      values.push(v);
      if (values.length > SAMPLES) values.shift();
      const top = Math.max(...values, 1), first = SAMPLES - values.length;
      const points = values.map((y, x) => `${first + x} ${(19 - (y / top) * 18).toFixed(2)}`).join("L");
      line.setAttribute("d", `M${points}`);
      area.setAttribute("d", `M${first} 20L${points}L${SAMPLES - 1} 20Z`);
    },
  };
}

function buildReplica() {
  const card = make("article", "card"), head = make("h3"), name = make("b"), state = make("span", "tag");
  const speed = make("div", "speed"), figures = make("div"), strong = make("strong"), unit = make("span", "", " tokens/s"), line = spark();
  const slots = make("div", "slots"), meter = make("div", "meter"), label = make("span", "", "prompt tokens from cache"), share = make("b"), bar = make("div"), fill = make("i");
  head.append(name, state);
  figures.append(strong, unit);
  speed.append(figures, line.svg);
  bar.append(fill);
  meter.append(label, share, bar);
  card.append(head, speed, slots, meter);
  return {
    element: card,
    update(r) {
      setText(name, r.name);
      setText(state, r.suspect ? "suspect" : r.state);
      setClass(state, `tag ${r.suspect ? "bad" : r.ready ? "go" : r.state === "failed" ? "bad" : "wait"}`);
      setClass(card, r.ready ? "card" : "card away");
      setText(strong, r.tokens_per_s < 100 ? r.tokens_per_s.toFixed(1) : count(Math.round(r.tokens_per_s)));
      line.add(r.tokens_per_s);
      const squares = r.slots <= 32 ? r.slots : 0;
      if (slots.childElementCount !== squares + 1) slots.replaceChildren(...Array.from({ length: squares }, () => make("i")), make("span"));
      for (let i = 0; i < squares; i++) setClass(slots.children[i], i < r.busy ? "busy" : "");
      setText(slots.lastChild, `${r.slots ? `${r.busy} of ${r.slots} slots` : `${r.busy} under way`}${r.waiting ? `, ${r.waiting} waiting` : ""}${r.prefill_tokens_per_s === null ? "" : `, reads ${count(Math.round(r.prefill_tokens_per_s))}/s`}`);
      setText(share, r.cache_share === null ? "–" : `${Math.round(r.cache_share * 100)} %`);
      fill.style.width = `${(r.cache_share || 0) * 100}%`;
    },
  };
}

/* ---- requests ---- */

const colours = { decode: "go", ok: "go", prefill: "read", read: "read", queue: "wait", load: "wait", left: "wait", cancelled: "wait", error: "bad", cut: "bad" };

function cancelButton(id) {
  const button = make("button", "cancel", "cancel");
  let timer = 0;
  button.type = "button";
  button.setAttribute("aria-label", `cancel request ${id}`);
  const calm = () => {
    setClass(button, "cancel");
    setText(button, "cancel");
  };
  button.addEventListener("click", async () => {
    clearTimeout(timer);
    if (!button.classList.contains("sure")) {
      setClass(button, "cancel sure");
      setText(button, "sure?");
      timer = setTimeout(calm, SURE_MS);
      return;
    }
    button.disabled = true;
    try {
      const answer = await fetch(`/requests/${id}/cancel`, { method: "POST", headers: { "X-Berth-Page": "1" } });
      setText(button, answer.ok ? "cancelled" : answer.status === 404 ? "over" : "refused");
    } catch {
      button.disabled = false;
      calm();
    }
  });
  return button;
}

function buildRequest(item, ended) {
  const row = make("tr"), cells = Array.from({ length: 10 }, () => make("td"));
  const id = make("button", "id", String(item.id)), tag = make("span", "tag");
  id.type = "button";
  id.setAttribute("aria-label", `explain request ${item.id}`);
  id.addEventListener("click", () => explain(item.id));
  for (const i of [0, 4, 5, 6]) cells[i].className = "n";
  for (const i of [7, 8]) cells[i].className = "soft";
  cells[5].dataset.unit = "tokens";
  cells[6].dataset.unit = "/s";
  cells[0].append(id);
  cells[3].append(tag);
  if (!ended) cells[9].append(cancelButton(item.id));
  row.append(...cells);
  return {
    element: row,
    update(r) {
      const word = ended ? r.outcome : r.phase;
      setText(cells[1], r.endpoint || "");
      setText(cells[2], r.replica ? r.replica + (r.attempts > 1 ? ` (attempt ${r.attempts})` : "") : "");
      setText(tag, word + (r.position ? ` ${r.position}` : "") + (ended && r.status >= 400 ? ` ${r.status}` : ""));
      setClass(tag, `tag ${colours[word] || ""}`);
      setText(cells[4], time(r.ms));
      setText(cells[5], r.tokens ? count(r.tokens) : "");
      setText(cells[6], rate(r.tokens_per_s));
      setText(cells[7], r.conversation || "");
      setText(cells[8], r.key || "");
    },
  };
}

/* ---- one request explained ---- */

const reasons = {
  affine: "It holds the conversation and reads the rest soonest.",
  overflow: "Another replica holds the conversation, but is too busy to wait for.",
  cold: "Nobody holds the conversation; new ones take turns.",
  turn: "It was its turn.",
  least: "It had the fewest requests for each slot.",
  hash: "The place follows from the conversation.",
  retry: "The replicas before it failed.",
  joined: "The same turn was under way; both get its answer.",
};

function fact(list, name, value) {
  list.append(make("dt", "", name), make("dd", "", value));
}

async function explain(id) {
  const dialog = byId("explain"), facts = byId("explain-facts"), body = byId("candidates").tBodies[0];
  const answer = await fetch(`/requests/${id}`);
  const r = await answer.json();
  setText(byId("explain-title"), answer.ok ? `Request ${r.id}: ${r.method} ${r.path}` : `Request ${id}`);
  setText(byId("explain-why"), answer.ok ? (r.decision ? `${r.replica || "-"}: ${reasons[r.decision] || r.decision}` : "No replica has had it yet.") : r.error);
  body.replaceChildren();
  facts.replaceChildren();
  for (const c of r.candidates || []) {
    const row = make("tr", c.chosen ? "chosen" : "");
    row.append(make("td", "", c.replica));
    for (const text of [count(c.expected_cached_tokens), time(c.wait_ms), count(Math.round(c.prefill_tokens_per_s)), time(c.expected_ms)]) row.append(make("td", "n", text));
    body.append(row);
  }
  setClass(byId("candidates"), body.rows.length ? "" : "empty");
  if (answer.ok) {
    fact(facts, "now", r.outcome ? `${r.outcome}, status ${r.status}, after ${time(r.ms)}` : `${r.phase} for ${time(r.phase_ms)}`);
    if (r.key) fact(facts, "key", r.key);
    if (r.queue_ms !== null) fact(facts, "waited", `${time(r.queue_ms)} in the queue`);
    if (r.first_ms !== null) fact(facts, "first content", `after ${time(r.first_ms)}`);
    if (r.cached_tokens !== null) fact(facts, "cache", `${count(r.cached_tokens)} of ${count(r.prompt_tokens)} prompt tokens, ${count(r.expected_cached_tokens)} expected`);
    if (r.tokens) fact(facts, "answer", `${count(r.tokens)} tokens${r.tokens_per_s > 0 ? `, ${rate(r.tokens_per_s)}/s` : ""}`);
    for (const f of r.failed) fact(facts, "failed", `${f.replica}: ${f.reason}`);
    if (r.regret_ms !== null) fact(facts, "regret", r.regret_ms > 0 ? `${time(r.regret_ms)}: another candidate would have had the prompt read sooner` : "none: no other candidate would have been sooner");
  }
  if (!dialog.open) dialog.showModal();
}

/* ---- all of it ---- */

const drawReplicas = keyed(byId("replicas"), buildReplica);
const drawRequests = keyed(byId("requests").tBodies[0], (r) => buildRequest(r, false));
const drawRecent = keyed(byId("recent").tBodies[0], (r) => buildRequest(r, true));

function none(list, n) {
  document.querySelector(`[data-none="${list}"]`).hidden = n > 0;
  byId(list).classList.toggle("empty", n === 0);
}

function total(name, value, alarm) {
  const e = document.querySelector(`[data-total="${name}"]`);
  setText(e, value);
  e.parentNode.classList.toggle("alarm", Boolean(alarm));
}

function draw({ status, router }) {
  const states = new Map(status.services.map((s) => [s.name, s.drained ? "drained" : s.state]));
  const replicas = router.replicas.map((r) => {
    const state = states.get(r.name);
    return { ...r, state: state && state !== "elsewhere" ? state : r.ready ? "ready" : "not ready" };
  });
  setText(byId("fleet"), status.fleet);
  document.title = `${router.active ? `(${router.active}) ` : ""}${status.fleet} – berth`;
  total("active", count(router.active));
  total("waiting", count(router.waiting));
  total("rate", rate(replicas.reduce((sum, r) => sum + r.tokens_per_s, 0)) || "0");
  total("served", count(router.total - router.active));
  total("retries", count(router.retries));
  total("errors", count(router.errors), router.errors > 0);
  const recent = router.recent.slice(0, 50);
  drawReplicas(replicas, (r) => r.name);
  drawRequests(router.requests, (r) => r.id);
  drawRecent(recent, (r) => r.id);
  for (const list of ["requests", "recent"]) byId(list).classList.toggle("keyless", ![...router.requests, ...recent].some((r) => r.key));
  none("replicas", replicas.length);
  none("requests", router.requests.length);
  none("recent", recent.length);
}

function link(word, text) {
  const e = byId("link");
  setClass(e, `link ${word}`);
  setText(e.lastChild, text);
}

const events = new EventSource("/events");
events.addEventListener("open", () => link("live", "live"));
events.addEventListener("error", () => link("lost", "connection lost, trying again"));
events.addEventListener("state", (e) => {
  const state = JSON.parse(e.data);
  if (state.router && state.router.replicas) {
    link("live", "live");
    draw(state);
  } else {
    link("lost", "the router does not answer");
  }
});
