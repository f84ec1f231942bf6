// The live page: takes the events of the gateway, and gives each part what it shows.

import { Chart } from "./chart.js";
import { element, replace } from "./dom.js";
import { Panel } from "./panel.js";
import { follow, get, useToken } from "./stream.js";
import { showClasses, showInstances, showRequests } from "./tables.js";
import { theme } from "./theme.js";
import { count, percent, planned, span } from "./words.js";

/** Age of a plan that is remarked; as in `qlm plan show`. */
const OLD_S = 30;
const SILENT_MS = 5000;
const LISTED = 20;
const SLASH = "qlm-slash";

const at = (id) => document.getElementById(id);
const latest = { plan: undefined, progress: null, queues: null, instances: null, tick: null };
const link = { state: "connecting", why: "", heard_ms: performance.now() };

const now_s = () => (Date.now() + chart.offset_ms) / 1000;
const panel = new Panel({ panel: at("panel"), title: at("panel-title"), body: at("panel-body"), columns: at("columns"), now: () => now_s() });
const chart = new Chart({ box: at("chart"), canvas: at("canvas"), spacer: at("spacer"), options: at("options"), onChoose: (id) => panel.open(id, at("chart")) });

theme(at("theme"), () => {
  chart.recolour();
  legend();
});

// --- events

const TAKE = {
  tick(data) {
    link.heard_ms = performance.now();
    chart.setClock(data.at_ms);
  },
  plan(data) {
    chart.setPlan(data);
    legend();
  },
  progress: (data) => chart.setRemaining(data.remaining),
  queues: (data) => showClasses(at("classes"), data, now_s()),
  instances() {},
};

function take(kind, data) {
  if (!(kind in TAKE)) return;
  latest[kind] = data;
  TAKE[kind](data);
  if (latest.instances && (kind === "instances" || kind === "plan")) showInstances(at("instances"), latest.instances.instances, latest.plan?.lanes ?? []);
  status();
}

function state(name, why = "") {
  if (name === "refused") {
    refused(why);
    return;
  }
  if (link.state !== name || link.why !== why) {
    link.state = name;
    link.why = why;
    status();
  }
}

function connect() {
  at("token-form").hidden = true;
  follow("ui/events", take, state);
}

function refused(error) {
  link.state = "away";
  link.why = error.message;
  at("token-form").hidden = !["admin_token_required", "missing_scope"].includes(error.code);
  at("token-why").textContent = error.message;
  if (!at("token-form").hidden) at("token").focus();
  status();
}

// --- what is said above the chart

function status() {
  const silent = link.state === "live" && performance.now() - link.heard_ms > SILENT_MS;
  const shown = silent ? "stale" : link.state;
  const words = { live: "live", stale: "no news", away: "gateway away", connecting: "connecting" }[shown];
  const box = at("status");
  if (box.dataset.state !== shown) {
    box.dataset.state = shown;
    at("status-text").textContent = words;
  }
  document.body.toggleAttribute("data-stale", shown === "away" || shown === "stale");
  at("summary").textContent = summary();
  banners([...troubles(shown)]);
  empty();
}

function age_s() {
  return latest.plan ? now_s() - latest.plan.at_ms / 1000 : 0;
}

function summary() {
  const { plan, progress } = latest;
  if (!plan) return "";
  const groups = chart.open.reduce((sum, each) => sum + each.length, 0);
  const parts = [`${count(groups, "group")} on ${count(plan.lanes.length, "instance")}`, planned(plan.method, age_s())];
  if (plan.expected_attainment !== null) parts.push(`${percent(plan.expected_attainment)} expected in time`);
  if (plan.late_requests >= 0.5) parts.push(`${Math.round(plan.late_requests)} expected late`);
  if (plan.unplaceable.length) parts.push(`${count(plan.unplaceable.length, "group")} runs nowhere`);
  if (progress?.unplanned_requests) parts.push(`${progress.unplanned_requests} not planned yet`);
  return parts.join(" · ");
}

function* troubles(shown) {
  const heard = span((performance.now() - link.heard_ms) / 1000);
  if (shown === "away") yield ["bad", "✕ Gateway away", latest.tick ? `${link.why}. What is shown is ${heard} old; the page tries again by itself.` : `${link.why}. The page tries again by itself.`];
  if (shown === "stale") yield ["warn", "▲ No news", `for ${heard}: the gateway may be busy or away.`];
  const trouble = latest.tick?.trouble;
  if (shown === "live" && trouble) yield ["bad", "✕ Stale", `the gateway cannot read the cluster: ${trouble}`];
  if (shown === "live" && latest.tick && !latest.tick.leader) yield ["bad", "✕ No controller", "plans: start one with `qlm controller`, or `qlm serve`."];
  else if (shown === "live" && latest.plan && age_s() > OLD_S) yield ["warn", "▲ Old plan", `of ${span(age_s())} ago: is a controller running?`];
}

let said = "";
function banners(list) {
  const key = list.map(([, title]) => title).join();
  const box = at("banners");
  if (key !== said) replace(box, ...list.map(([kind, title, text]) => element("p", { "data-kind": kind }, element("strong", {}, title), element("span", {}, text))));
  else list.forEach(([, , text], index) => { box.children[index].lastChild.textContent = text; });
  said = key;
}

function empty() {
  const groups = chart.open?.some((each) => each.length);
  const text = latest.plan === undefined ? "Waiting for the first look at the cluster."
    : latest.plan === null ? "There is no plan yet: no controller has made one."
      : !latest.plan.lanes.length ? "No instance lives."
        : !groups ? "No group waits: what arrives is served at once." : "";
  at("empty").textContent = text;
  at("empty").hidden = !text;
  at("chart").hidden = !latest.plan?.lanes.length;
}

function legend() {
  const parts = [...chart.style].map(([model, { fill, stripes }]) => element("span", {}, swatch((pen) => {
    pen.fillStyle = fill;
    pen.fillRect(0, 0, 22, 12);
    pen.fillStyle = "#ffffff";
    for (let stripe = 0; stripe < stripes; stripe += 1) pen.fillRect(0, 2 + 4 * stripe, 22, 2);
  }), model));
  const { faint, line, bad } = chart.colour;
  parts.push(element("span", {}, swatch((pen) => {
    pen.fillStyle = line;
    pen.fillRect(0, 1, 22, 10);
    pen.fillStyle = faint;
    for (let x = 0; x < 22; x += 4) pen.fillRect(x, 1, 1.5, 10);
  }), "model change"), element("span", {}, swatch((pen) => {
    pen.fillStyle = faint;
    pen.fillRect(1, 5, 20, 1.5);
    pen.beginPath();
    pen.arc(11, 6, 3, 0, 7);
    pen.fill();
  }), "last answer, 90 % interval"), element("span", {}, swatch((pen) => {
    pen.fillStyle = faint;
    pen.beginPath();
    pen.moveTo(6, 1);
    pen.lineTo(16, 1);
    pen.lineTo(11, 10);
    pen.fill();
  }), "deadline"), element("span", {}, swatch((pen) => {
    pen.strokeStyle = bad;
    pen.lineWidth = 2;
    pen.strokeRect(1, 1, 20, 10);
    pen.beginPath();
    for (let x = 0; x < 22; x += 6) {
      pen.moveTo(x, 11);
      pen.lineTo(x + 8, 1);
    }
    pen.stroke();
  }), "! most of it late"), element("span", {}, swatch((pen) => {
    pen.strokeStyle = bad;
    pen.lineWidth = 2;
    pen.setLineDash([4, 3]);
    pen.strokeRect(1, 1, 20, 10);
  }), "deadline can no longer be met"));
  replace(at("legend"), ...parts);
}

function swatch(draw) {
  const canvas = element("canvas", { width: "22", height: "12", "aria-hidden": "true" });
  draw(canvas.getContext("2d"));
  return canvas;
}

// --- forms and keys

at("find").addEventListener("submit", (event) => {
  event.preventDefault();
  const name = at("name").value.trim();
  if (name) panel.open(name, at("name"));
});
at("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useToken(at("token").value.trim());
  at("token").value = "";
  connect();
});
at("listing").addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    const answer = await (await get(`admin/v1/requests?limit=${LISTED}&${at("which").value}`)).json();
    showRequests(at("requests"), answer.requests, now_s(), (id) => panel.open(id, document.activeElement));
  } catch (error) {
    replace(at("requests"), element("p", { class: "bad" }, error.status ? error.message : "The gateway does not answer."));
  }
});
at("zoom-in").addEventListener("click", () => chart.zoomBy(1));
at("zoom-out").addEventListener("click", () => chart.zoomBy(-1));
at("zoom-fit").addEventListener("click", () => chart.zoomBy(null));
at("panel-close").addEventListener("click", () => panel.close());
at("panel-again").addEventListener("click", () => panel.open(panel.name));
at("slash").checked = localStorage.getItem(SLASH) !== "off";
at("slash").addEventListener("change", (event) => localStorage.setItem(SLASH, event.target.checked ? "on" : "off"));
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") panel.close();
  const typing = ["INPUT", "SELECT"].includes(event.target.tagName) && event.target.type !== "checkbox";
  if (event.key === "/" && at("slash").checked && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    at("name").focus();
  }
});

setInterval(status, 1000);
connect();
