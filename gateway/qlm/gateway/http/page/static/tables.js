// The tables below the chart: instances, classes, requests.

import { element, gauge, replace, table } from "./dom.js";
import { gib, percent, relative, span, thousands } from "./words.js";

/** Attainment below which a class is marked. */
const LOW = 0.9;

export function showInstances(parent, instances, lanes) {
  const hosts = new Map(lanes.map((lane) => [lane.instance, lane]));
  const columns = [["instance"], ["state"], ["model"], ["running", true], ["preempted", true], ["KV cache, tokens"], ["host memory, models asleep"], ["swaps", true], ["planned", true]];
  const rows = instances.map((each) => {
    const host = hosts.get(each.id);
    return [
      `${each.id} (${each.accelerator})`, state(each), each.active_model ?? "none", String(each.running), String(each.parked),
      each.kv_tokens ? gauge(each.kv_used_tokens / each.kv_tokens, `${thousands(each.kv_used_tokens)} of ${thousands(each.kv_tokens)}`) : "none",
      memory(host, asleep(each)), each.swaps_thrashed ? `${each.swaps} (${each.swaps_thrashed} thrashed)` : String(each.swaps),
      host ? `${host.groups.length} groups` : "none",
    ];
  });
  replace(parent, rows.length ? table(columns, rows) : element("p", { class: "empty" }, "No instance lives, and none is configured."));
}

function state(each) {
  if (!each.live) return element("span", { class: "bad" }, "✕ no agent");
  if (each.error) return element("span", { class: "bad" }, `✕ ${each.error}`);
  if (each.draining) return element("span", { class: "warn" }, "▲ draining");
  const states = Object.values(each.engines);
  if (states.includes("awake")) return element("span", { class: "good" }, "● serves");
  return element("span", { class: "warn" }, states.includes("starting") ? "▲ starts" : "▲ none awake");
}

function asleep(each) {
  const names = Object.entries(each.engines).filter(([, state]) => state === "asleep" || state === "unloaded")
    .map(([model, state]) => (state === "asleep" ? model : `${model} (unloaded)`));
  return names.join(", ");
}

function memory(host, names) {
  if (!host || !host.host_bytes) return names || "none";
  const used = `${gib(host.host_used_bytes)} of ${gib(host.host_bytes)} GiB`;
  return gauge(host.host_used_bytes / host.host_bytes, names ? `${used}: ${names}` : used);
}

export function showClasses(parent, { classes, attainment, finished_per_s }, now_s) {
  const columns = [["class"], ["model"], ["priority", true], ["waiting", true], ["oldest", true], ["in time"], ["missed", true], ["mean lateness", true], ["largest lateness", true]];
  const key = (each) => JSON.stringify([each.model, each.slo_class, each.priority]);
  const judged = new Map(attainment.map((each) => [key(each), each]));
  const waiting = new Map();
  for (const each of classes) {
    const at = key(each);
    const known = waiting.get(at) ?? { queued: 0, late: 0, oldest_s: null, ...pick(each) };
    known.queued += each.queued;
    if (each.late) known.late += each.queued;
    if (each.oldest_arrival_s !== null) known.oldest_s = Math.min(known.oldest_s ?? Infinity, each.oldest_arrival_s);
    waiting.set(at, known);
  }
  for (const each of attainment) if (!waiting.has(key(each))) waiting.set(key(each), { queued: 0, late: 0, oldest_s: null, ...pick(each) });
  const rows = [...waiting].sort(([a], [b]) => (a < b ? -1 : 1)).map(([at, each]) => {
    const found = judged.get(at);
    return [
      each.slo_class, each.model, String(each.priority),
      each.late ? element("span", {}, `${each.queued} `, element("span", { class: "bad" }, `(${each.late} late)`)) : String(each.queued),
      each.oldest_s === null ? "–" : span(Math.max(0, now_s - each.oldest_s)),
      found ? inTime(found) : "–",
      found ? String(found.missed) : "–", found?.mean_late_by_s ? span(found.mean_late_by_s) : "–",
      found?.max_late_by_s ? span(found.max_late_by_s) : "–",
    ];
  });
  const rate = finished_per_s === null ? "" : `${finished_per_s} answers per second. `;
  const caption = `${rate}In time: of the latest 500 requests that ended in the last 10 minutes.`;
  replace(parent, rows.length ? table(columns, rows, caption) : element("p", { class: "empty" }, "Nothing waits, and nothing has ended in the last 10 minutes."));
}

function pick({ model, slo_class, priority }) {
  return { model, slo_class, priority };
}

function inTime({ judged, missed }) {
  const share = (judged - missed) / judged;
  const low = share < LOW;
  return gauge(share, `${low ? "! " : ""}${percent(share)} of ${judged}`, low);
}

export function showRequests(parent, requests, now_s, onOpen) {
  const columns = [["request"], ["model"], ["state"], ["arrived", true], ["deadline", true], ["in time"], ["instance"], ["tokens", true]];
  const rows = requests.map((each) => [
    element("button", { type: "button", class: "link", onclick: () => onOpen(each.id) }, each.id),
    each.model, each.outcome ?? each.status, relative(each.arrival_s - now_s),
    each.deadline_s === null ? "none" : relative(each.deadline_s - now_s), met(each), each.instance ?? "none", `${each.output_tokens}`,
  ]);
  replace(parent, rows.length ? table(columns, rows) : element("p", { class: "empty" }, "No such request."));
}

export function met(request) {
  if (request.met === null) return "not decided";
  if (request.met) return element("span", { class: "good" }, "● yes");
  return element("span", { class: "bad" }, `✕ late${request.late_by_s ? ` by ${span(request.late_by_s)}` : ""}`);
}
