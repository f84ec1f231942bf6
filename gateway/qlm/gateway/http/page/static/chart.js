// The chart of virtual queues: a canvas that moves with time, and one option for assistive technology.

import { AXIS, BAR_HEIGHT, BAR_TOP, LANE, MOSTLY, bars, horizon, moved, open, styles, ticks } from "./geometry.js";
import { count, cut, percent, relative, span } from "./words.js";

export const LABEL_PX = 168;
const CHARACTER_PX = 6.6;
const GLIDE_MS = 90;
const DETAIL_PX = 16;
const MIN_HEIGHT_PX = 190;
const KEYS = new Set(["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "PageUp", "PageDown", "Home", "End"]);

export class Chart {
  /** `onChoose` receives the id of a group that is to be explained. */
  constructor({ box, canvas, spacer, options, onChoose }) {
    this.box = box;
    this.canvas = canvas;
    this.pen = canvas.getContext("2d");
    this.spacer = spacer;
    this.options = options;
    this.onChoose = onChoose;
    this.plan = null;
    this.open = [];
    this.remaining = {};
    this.style = new Map();
    this.shown = new Map();
    this.zoom = 0;
    this.pan_s = 0;
    this.offset_ms = 0;
    this.selected = null;
    this.announced = 0;
    this.drawn_ms = 0;
    this.still = matchMedia("(prefers-reduced-motion: reduce)");
    new ResizeObserver(() => this.resize()).observe(box);
    box.addEventListener("keydown", (event) => this.key(event));
    box.addEventListener("click", (event) => this.click(event));
    box.addEventListener("mousemove", (event) => this.hover(event));
    box.addEventListener("focus", () => this.selected ?? this.choose(0, 0));
    this.recolour();
    this.frame = this.frame.bind(this);
    requestAnimationFrame(this.frame);
  }

  /** Take the time of the gateway, milliseconds since the epoch. */
  setClock(at_ms) {
    const offset_ms = at_ms - Date.now();
    // Single late events must not shake the chart.
    this.offset_ms = Math.abs(offset_ms - this.offset_ms) > 1500 ? offset_ms : Math.max(this.offset_ms, offset_ms);
  }

  setPlan(plan) {
    this.plan = plan;
    if (!plan) return;
    this.lane_of = new Map();
    plan.lanes.forEach((lane, at) => lane.groups.forEach((group) => this.lane_of.set(group.id, at)));
    for (const id of this.shown.keys()) if (!this.lane_of.has(id)) this.shown.delete(id);
    const models = plan.lanes.flatMap((lane) => [lane.loaded_model, ...lane.groups.map((group) => group.model)]);
    this.style = styles([...this.style.keys(), ...models].filter(Boolean));
    const height = AXIS + plan.lanes.length * LANE + 4;
    this.spacer.style.height = `${height}px`;
    this.box.style.height = `${Math.max(MIN_HEIGHT_PX, height + 2)}px`;
    this.refresh();
  }

  setRemaining(remaining) {
    this.remaining = remaining;
    this.refresh();
  }

  refresh() {
    this.open = this.plan ? open(this.plan.lanes, this.remaining) : [];
    const gone = this.selected && !this.group(this.selected.id);
    if (gone) this.choose(this.selected.lane, this.selected.index, document.activeElement === this.box);
    this.drawn_ms = 0;
  }

  recolour() {
    const css = getComputedStyle(document.documentElement);
    this.colour = Object.fromEntries(["raised", "ground", "text", "faint", "line", "accent", "bad"].map(
      (name) => [name, css.getPropertyValue(`--${name}`).trim()]));
    this.drawn_ms = 0;
  }

  resize() {
    const ratio = devicePixelRatio || 1;
    this.width = this.box.clientWidth;
    this.height = this.box.clientHeight;
    this.canvas.width = Math.round(this.width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    this.canvas.style.width = `${this.width}px`;
    this.canvas.style.height = `${this.height}px`;
    this.pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.drawn_ms = 0;
  }

  // --- time

  /** Seconds since the plan was made. */
  elapsed() {
    return this.plan ? (Date.now() + this.offset_ms - this.plan.at_ms) / 1000 : 0;
  }

  /** The bars of each lane, as of now. */
  bars() {
    const elapsed = this.elapsed();
    return this.open.map((groups) => bars(groups, this.remaining, elapsed));
  }

  scale(all = this.bars()) {
    const ends = all.map((each) => each.at(-1)?.late_s ?? 0);
    const fit_s = horizon(this.plan.lanes.map((lane) => lane.busy_s), ends, this.elapsed());
    return ((this.width - LABEL_PX - 8) / fit_s) * 2 ** this.zoom;
  }

  zoomBy(steps) {
    this.zoom = steps === null ? 0 : Math.max(-2, Math.min(8, this.zoom + steps));
    if (this.zoom <= 0) this.pan_s = 0;
    this.show();
    this.drawn_ms = 0;
  }

  // --- selection

  group(id) {
    for (let lane = 0; lane < this.open.length; lane += 1) {
      const index = this.open[lane].findIndex((each) => each.id === id);
      if (index >= 0) return { lane, index, group: this.open[lane][index] };
    }
    return null;
  }

  choose(lane, index, announce = true) {
    const to = this.plan && moved(this.open, lane, index, "");
    this.selected = to ? { lane: to[0], index: to[1], id: this.open[to[0]][to[1]].id } : null;
    this.show();
    if (announce) this.announce();
    this.drawn_ms = 0;
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !this.plan) return;
    if (KEYS.has(event.key)) {
      const at = this.selected ?? { lane: 0, index: 0 };
      const to = moved(this.open, at.lane, at.index, event.key);
      if (to) this.choose(...to);
    } else if (event.key === "Enter" || event.key === " ") {
      if (this.selected) this.onChoose(this.selected.id);
    } else if (event.key === "+" || event.key === "=") this.zoomBy(1);
    else if (event.key === "-") this.zoomBy(-1);
    else if (event.key === "0") this.zoomBy(null);
    else return;
    event.preventDefault();
  }

  /** Scroll to the selected group. */
  show() {
    if (!this.selected || !this.plan) return;
    const found = this.group(this.selected.id);
    if (!found) return;
    const top = AXIS + found.lane * LANE;
    if (top - AXIS < this.box.scrollTop) this.box.scrollTop = top - AXIS;
    if (top + LANE > this.box.scrollTop + this.height) this.box.scrollTop = top + LANE - this.height;
    const visible_s = (this.width - LABEL_PX) / this.scale();
    const start_s = this.bars()[found.lane][found.index].start_s - this.elapsed();
    if (start_s < this.pan_s || start_s > this.pan_s + 0.9 * visible_s) {
      this.pan_s = this.zoom > 0 ? Math.max(0, start_s - 0.1 * visible_s) : 0;
    }
  }

  /** Describe the selected group to assistive technology. */
  announce() {
    const found = this.selected && this.group(this.selected.id);
    if (!found) {
      this.options.replaceChildren();
      this.box.removeAttribute("aria-activedescendant");
      return;
    }
    const option = document.createElement("div");
    this.announced += 1;
    option.id = `group-${this.announced}`;
    option.className = "unseen";
    option.setAttribute("role", "option");
    option.setAttribute("aria-selected", "true");
    option.setAttribute("aria-setsize", String(this.open[found.lane].length));
    option.setAttribute("aria-posinset", String(found.index + 1));
    option.textContent = this.describe(found);
    this.options.replaceChildren(option);
    this.box.setAttribute("aria-activedescendant", option.id);
  }

  describe({ lane, index, group }) {
    const elapsed = this.elapsed();
    const bar = this.bars()[lane][index];
    const swap = group.swap ? `after a ${group.swap} model change of ${span(group.swap_s)}, ` : "";
    const met = group.deadline_s === null ? "" :
      `, deadline ${relative(group.deadline_s - elapsed)}, ${percent(group.p_met)} expected in time`;
    return `${group.id} on ${this.plan.lanes[lane].instance}: ${count(bar.number, "request")} of ` +
      `${group.model}, ${group.slo_class ?? "gone since"}${group.late ? " (late)" : ""}, ${swap}starts ` +
      `${relative(bar.start_s - elapsed)}, last answer ${relative(bar.end_s - elapsed)} ` +
      `(90 %: ${relative(bar.early_s - elapsed)} to ${relative(bar.late_s - elapsed)})${met}`;
  }

  // --- pointer

  at(event) {
    if (!this.plan || !this.shown.size) return null;
    const rect = this.box.getBoundingClientRect();
    const x = event.clientX - rect.left;
    const y = event.clientY - rect.top + this.box.scrollTop - AXIS;
    const lane = Math.floor(y / LANE);
    if (event.clientY - rect.top < AXIS || !this.open[lane]) return null;
    let best = null;
    this.open[lane].forEach((group, index) => {
      const box = this.shown.get(group.id);
      if (!box) return;
      const distance = Math.max(box.x0 - x, x - box.x1, 0);
      if (distance <= 5 && (best === null || distance < best.distance)) best = { lane, index, group, distance };
    });
    return best;
  }

  click(event) {
    const found = this.at(event);
    if (!found) return;
    this.choose(found.lane, found.index);
    this.onChoose(found.group.id);
  }

  hover(event) {
    const found = this.at(event);
    this.box.title = found ? this.describe(found) : "";
    this.box.style.cursor = found ? "pointer" : "";
  }

  // --- drawing

  frame(now_ms) {
    requestAnimationFrame(this.frame);
    if (!this.width || (this.still.matches && now_ms - this.drawn_ms < 1000 && this.drawn_ms)) return;
    const passed_ms = this.drawn_ms ? now_ms - this.drawn_ms : Infinity;
    this.drawn_ms = now_ms;
    this.draw(this.still.matches ? 1 : 1 - Math.exp(-passed_ms / GLIDE_MS));
  }

  draw(glide) {
    const { pen } = this;
    pen.fillStyle = this.colour.raised;
    pen.fillRect(0, 0, this.width, this.height);
    if (!this.plan) return;
    const elapsed = this.elapsed();
    const all = this.bars();
    const scale = this.scale(all);
    const x = (seconds) => LABEL_PX + (seconds - elapsed - this.pan_s) * scale;
    const top = this.box.scrollTop;
    pen.save();
    pen.beginPath();
    pen.rect(LABEL_PX, AXIS, this.width - LABEL_PX, this.height - AXIS);
    pen.clip();
    this.grid(elapsed, scale, x);
    const first = Math.max(0, Math.floor(top / LANE) - 1);
    const last = Math.min(this.plan.lanes.length, Math.ceil((top + this.height) / LANE));
    for (let lane = first; lane < last; lane += 1) this.lane(lane, all[lane], AXIS + lane * LANE - top, x, elapsed, glide);
    pen.restore();
    for (let lane = first; lane < last; lane += 1) this.label(lane, AXIS + lane * LANE - top);
    this.axis(elapsed, scale, x);
  }

  grid(elapsed, scale, x) {
    this.pen.fillStyle = this.colour.line;
    for (const at of ticks(this.pan_s, this.pan_s + this.width / scale, scale)) {
      this.pen.fillRect(Math.round(x(elapsed + at)), AXIS, 1, this.height);
    }
  }

  axis(elapsed, scale, x) {
    const { pen } = this;
    pen.fillStyle = this.colour.ground;
    pen.fillRect(0, 0, this.width, AXIS);
    pen.fillStyle = this.colour.line;
    pen.fillRect(0, AXIS - 1, this.width, 1);
    pen.fillStyle = this.colour.faint;
    pen.font = "12px system-ui, sans-serif";
    pen.textBaseline = "middle";
    for (const at of ticks(this.pan_s, this.pan_s + this.width / scale, scale)) {
      pen.fillText(at === 0 ? "now" : `in ${span(at).replace(".0", "")}`, x(elapsed + at) + 4, AXIS / 2);
    }
    pen.fillText("instance, model loaded", 8, AXIS / 2);
  }

  label(lane, y) {
    const { pen } = this;
    const { instance, loaded_model, kind } = this.plan.lanes[lane];
    pen.fillStyle = this.colour.raised;
    pen.fillRect(0, Math.max(AXIS, y), LABEL_PX, LANE);
    pen.fillStyle = this.colour.line;
    pen.fillRect(0, y + LANE - 1, this.width, 1);
    pen.fillRect(LABEL_PX - 1, y, 1, LANE);
    pen.textBaseline = "middle";
    pen.fillStyle = this.colour.text;
    pen.font = "600 13px system-ui, sans-serif";
    const within = (room) => (words) => pen.measureText(words).width <= room;
    pen.fillText(cut(instance, within(LABEL_PX - 18)), 8, y + 17);
    pen.fillStyle = this.colour.faint;
    pen.font = "12px system-ui, sans-serif";
    const style = this.style.get(loaded_model);
    if (style) {
      pen.fillStyle = style.fill;
      pen.fillRect(8, y + 29, 9, 9);
      pen.fillStyle = this.colour.faint;
    }
    pen.fillText(cut(loaded_model ?? `${kind}, nothing loaded`, within(LABEL_PX - 32)), style ? 22 : 8, y + 34);
  }

  lane(lane, queue, y, x, elapsed, glide) {
    const { busy_s, loaded_model } = this.plan.lanes[lane];
    const style = this.style.get(loaded_model);
    if (busy_s > elapsed && style) this.busy(x(elapsed), x(busy_s), y + BAR_TOP, style);
    for (const bar of queue) this.place(bar, y, x, glide);
    queue.forEach((bar, row) => bar.group.id !== this.selected?.id && this.bar(bar, x, elapsed, row % 3));
    const chosen = queue.find((each) => each.group.id === this.selected?.id);
    if (chosen) this.bar(chosen, x, elapsed, 0);
  }

  busy(from, to, y, style) {
    this.pen.globalAlpha = 0.28;
    this.pen.fillStyle = style.fill;
    this.pen.fillRect(from, y + 4, to - from, BAR_HEIGHT - 8);
    this.pen.globalAlpha = 1;
    this.text("runs now", from + 5, y, to - from - 8, this.colour.text);
  }

  /** Let a bar glide to where it now belongs. */
  place({ group, start_s, leaves_s }, y, x, glide) {
    const x0 = x(start_s);
    const target = { x0, x1: Math.max(x0 + 3, x(leaves_s) - 1), y: y + BAR_TOP };
    const box = this.shown.get(group.id);
    if (!box) {
      this.shown.set(group.id, target);
      return;
    }
    for (const name of ["x0", "x1", "y"]) box[name] += (target[name] - box[name]) * glide;
    if (Math.abs(target.y - box.y) > LANE * 40) box.y = target.y;
  }

  bar(bar, x, elapsed, row) {
    const { pen } = this;
    const { group, number } = bar;
    const { x0, x1, y } = this.shown.get(group.id);
    const chosen = group.id === this.selected?.id;
    const late = group.deadline_s !== null && group.p_met < MOSTLY;
    if (x0 > this.width && !chosen) return;
    if (group.swap && bar.start_s > elapsed) this.swap(x(Math.max(elapsed, bar.start_s - group.swap_s)), x0, y);
    const style = this.style.get(group.model);
    pen.fillStyle = style.fill;
    pen.fillRect(x0, y, x1 - x0, BAR_HEIGHT);
    for (let stripe = 0; stripe < style.stripes; stripe += 1) {
      pen.fillStyle = "#ffffff";
      pen.fillRect(x0, y + 3 + 5 * stripe, x1 - x0, 2);
    }
    if (late) this.hatch(x0, x1, y, style.ink);
    if (group.late || late) {
      pen.strokeStyle = this.colour.bad;
      pen.lineWidth = 2;
      pen.setLineDash(group.late ? [4, 3] : []);
      pen.strokeRect(x0 + 1, y + 1, Math.max(1, x1 - x0 - 2), BAR_HEIGHT - 2);
      pen.setLineDash([]);
    }
    const mark = late ? "! " : "";
    const whole = `${mark}${number} × ${group.slo_class ?? group.model}`;
    const fits = whole.length * CHARACTER_PX < x1 - x0 - 8;
    this.text(fits ? whole : `${mark}${number}`, x0 + 5, y, x1 - x0 - 8, style.ink, late ? style.fill : null);
    if (x1 - x0 >= DETAIL_PX || chosen) this.interval(bar, x, y, row, chosen);
    if (chosen) this.frameOf(x0, x1, y, group, x);
  }

  text(words, x, y, room, ink, ground = null) {
    const width = words.length * CHARACTER_PX;
    if (width > room) return;
    if (ground) {
      this.pen.fillStyle = ground;
      this.pen.fillRect(x - 2, y + 4, width + 3, BAR_HEIGHT - 8);
    }
    this.pen.fillStyle = ink;
    this.pen.font = "12px system-ui, sans-serif";
    this.pen.textBaseline = "middle";
    this.pen.fillText(words, x, y + BAR_HEIGHT / 2 + 0.5);
  }

  hatch(x0, x1, y, ink) {
    const { pen } = this;
    pen.save();
    pen.beginPath();
    pen.rect(x0, y, x1 - x0, BAR_HEIGHT);
    pen.clip();
    pen.strokeStyle = ink;
    pen.globalAlpha = 0.55;
    pen.lineWidth = 1.5;
    pen.beginPath();
    for (let at = Math.max(x0, 0) - BAR_HEIGHT; at < Math.min(x1, this.width); at += 7) {
      pen.moveTo(at, y + BAR_HEIGHT);
      pen.lineTo(at + BAR_HEIGHT, y);
    }
    pen.stroke();
    pen.restore();
  }

  swap(from, to, y) {
    const { pen } = this;
    if (to - from < 1) return;
    pen.fillStyle = this.colour.line;
    pen.fillRect(from, y + 5, to - from, BAR_HEIGHT - 10);
    pen.fillStyle = this.colour.faint;
    for (let at = from; at < to; at += 4) pen.fillRect(at, y + 5, 1.5, BAR_HEIGHT - 10);
    this.text("swap", from + 3, y, to - from - 4, this.colour.text, this.colour.line);
  }

  /** The last answer with its 90 % interval below the bar, the deadline above it. */
  interval({ group, end_s, early_s, late_s }, x, y, row, chosen) {
    const { pen } = this;
    const base = y + BAR_HEIGHT + 5 + 5 * row;
    const [early, mean, late] = [x(early_s), x(end_s), x(late_s)];
    pen.fillStyle = chosen ? this.colour.text : this.colour.faint;
    pen.fillRect(early, base, Math.max(1, late - early), 1.5);
    pen.fillRect(early, base - 1.5, 1.5, 4.5);
    pen.fillRect(late - 1.5, base - 1.5, 1.5, 4.5);
    pen.beginPath();
    pen.arc(mean, base + 0.75, chosen ? 4 : 2.5, 0, 7);
    pen.fill();
    if (group.deadline_s === null) return;
    const at = x(group.deadline_s);
    const over = end_s > group.deadline_s;
    pen.fillStyle = over ? this.colour.bad : chosen ? this.colour.text : this.colour.faint;
    pen.beginPath();
    pen.moveTo(at - 4, y - 9);
    pen.lineTo(at + 4, y - 9);
    pen.lineTo(at, y - 2);
    pen.fill();
  }

  frameOf(x0, x1, y, group, x) {
    const { pen } = this;
    pen.strokeStyle = this.colour.text;
    pen.lineWidth = 2.5;
    pen.strokeRect(x0 - 2, y - 2, x1 - x0 + 4, BAR_HEIGHT + 4);
    if (group.deadline_s === null) return;
    pen.fillStyle = this.colour.text;
    pen.fillRect(x(group.deadline_s) - 0.75, y - 9, 1.5, BAR_HEIGHT + 18);
  }
}
