// The pure parts of the live page, in Node.js.
import assert from "node:assert/strict";
import { test } from "node:test";

const folder = new URL("../../gateway/qlm/gateway/http/page/static/", import.meta.url);
const { bars, horizon, moved, open, roundTime, styles, ticks } = await import(new URL("geometry.js", folder));
const { Chart, LABEL_PX } = await import(new URL("chart.js", folder));
const { parse } = await import(new URL("stream.js", folder));
const { cut, planned, span, relative } = await import(new URL("words.js", folder));

const group = (id, start_s, leaves_s, requests = 10) => ({
  id, requests, start_s, leaves_s, end_s: leaves_s + 2, end_early_s: leaves_s + 1, end_late_s: leaves_s + 3,
});
const times = (list) => list.map((each) => [each.start_s, each.leaves_s, each.delay_s]);

test("bars have the times of the plan while the queue keeps them", () => {
  const groups = [group("a", 2, 4), group("b", 5, 9)];
  assert.deepEqual(times(bars(groups, {}, 0)), [[2, 4, 0], [5, 9, 0]]);
});

test("a group that is being served has the part that waits", () => {
  const [bar] = bars([group("a", 0, 10)], { a: 5 }, 5);
  assert.deepEqual([bar.number, bar.start_s, bar.leaves_s, bar.delay_s], [5, 5, 10, 0]);
});

test("a group that waits after its time begins now, and delays those behind it", () => {
  const queue = bars([group("a", 0, 4), group("b", 4, 6)], {}, 10);
  assert.deepEqual(times(queue), [[10, 14, 10], [14, 16, 10]]);
  assert.deepEqual([queue[1].early_s, queue[1].end_s, queue[1].late_s], [17, 18, 19]);
});

test("groups without waiting requests are not open", () => {
  const lanes = [{ groups: [group("a", 0, 1), group("b", 1, 2)] }, { groups: [] }];
  assert.deepEqual(open(lanes, { a: 0 }).map((each) => each.map(({ id }) => id)), [["b"], []]);
});

test("arrow keys stay on the chart and pass over empty queues", () => {
  const lanes = [[1, 2, 3], [], [4]];
  assert.deepEqual(moved(lanes, 0, 0, "ArrowLeft"), [0, 0]);
  assert.deepEqual(moved(lanes, 0, 2, "ArrowRight"), [0, 2]);
  assert.deepEqual(moved(lanes, 0, 2, "ArrowDown"), [2, 0]);
  assert.deepEqual(moved(lanes, 2, 0, "ArrowUp"), [0, 0]);
  assert.deepEqual(moved(lanes, 2, 0, "ArrowDown"), [2, 0]);
  assert.deepEqual(moved(lanes, 1, 5, ""), [2, 0]);
  assert.deepEqual(moved(lanes, 0, 1, "End"), [0, 2]);
  assert.equal(moved([[], []], 0, 0, "ArrowDown"), null);
});

test("the width of the chart is a round time, and its ticks are apart", () => {
  assert.deepEqual([3, 11, 61, 400, 4000].map(roundTime), [10, 15, 90, 540, 4320]);
  assert.equal(horizon([0], [47], 10), 40);
  assert.deepEqual(ticks(0, 25, 10), [0, 10, 20]);
});

test("each model keeps a colour, and more models than colours have stripes", () => {
  const names = Array.from({ length: 9 }, (_, at) => `m${at}`);
  const found = styles([...names, "m0"]);
  assert.equal(found.size, 9);
  assert.equal(new Set([...found.values()].map(({ fill, stripes }) => fill + stripes)).size, 9);
});

test("events are read across the borders of chunks", () => {
  const [events, rest] = parse('retry: 1000\n\nevent: tick\ndata: {"at_ms":1}\n\nevent: pl');
  assert.deepEqual(events, [["tick", { at_ms: 1 }]]);
  assert.deepEqual(parse(`${rest}an\ndata: null\n\n`), [[["plan", null]], ""]);
});

test("times are written as qlm writes them", () => {
  assert.deepEqual([0.04, 9.96, 12, 119, 150, 7300].map(span), ["0.0s", "10.0s", "12s", "119s", "2.5min", "2.0h"]);
  assert.deepEqual([relative(5), relative(-200)], ["in 5.0s", "3.3min ago"]);
});

test("a plan that was kept is not said to be made by kept", () => {
  assert.equal(planned("qlm", 4), "plan by qlm 4.0s ago");
  assert.equal(planned("kept", -1), "earlier plan kept 0.0s ago");
});

test("a name that is too long keeps its ends, which tell the instances of a cluster apart", () => {
  const within = (most) => (words) => words.length <= most;
  assert.equal(cut("a100-0", within(6)), "a100-0");
  assert.equal(cut("gpu-node-europe-west4-01", within(12)), "gpu-no…t4-01");
  assert.equal(cut("gpu-node-europe-west4-02", within(12)), "gpu-no…t4-02");
  assert.equal(cut("abc", within(0)), "a…c");
});

test("no name of an instance or a model runs over the bars beside it, however wide its letters are", () => {
  const right = [];
  const pen = {
    fillRect() {},
    measureText: (words) => ({ width: 11 * words.length }),
    fillText: (words, x) => right.push(x + 11 * words.length),
  };
  const lane = { instance: "GPU-MAMMOTH-WEST-01", loaded_model: "organization/MMMM-WWWW-7B", kind: "A100" };
  Chart.prototype.label.call({ pen, plan: { lanes: [lane] }, style: new Map(), colour: {}, width: 900 }, 0, 40);
  assert.equal(right.length, 2);
  assert.ok(Math.max(...right) < LABEL_PX, `${right}`);
});
