/**
 * Pacer of one streamed text. Its caller has the clock; times are milliseconds.
 *
 * Each unit (`words`) has a time at which it is due: the graphemes before it, at the rate, after the unit before
 * it. So what is released by a time depends on the arrivals alone, not on how often the caller asks.
 */

import { Arrivals } from "./arrivals.js";
import { endsInHalf, graphemes, isOpen } from "./graphemes.js";
import { settingsOf, type PacerOptions } from "./options.js";
import { Timeline } from "./timeline.js";
import { words } from "./words.js";

/** Release over arrival: at 1, the text left over by an uneven arrival would never be caught up with. */
const CATCH_UP = 1.1;
/** Share of the largest lag that a word waits for its rest, or for the time of the word before it. */
const WAIT_SHARE = 1 / 3;
/** The same without a largest lag. */
const WAIT_MAX_MS = 100;

interface Unit {
  readonly text: string;
  readonly size: number;
  readonly arrivalMs: number;
}

/** Experience of the reader of a paced text, a grapheme for a token. */
export interface PacerReport {
  /** Graphemes released. */
  readonly graphemes: number;
  /** Lateness of the first. */
  readonly firstWaitMs: number;
  /** Idle time of the reader. */
  readonly idleMs: number;
  /** Waits of the reader after the first grapheme. */
  readonly stalls: number;
  /** Quality of experience, QoE*, from 0 to 1. */
  readonly qoeStar: number;
  /** Longest that a character waited in the pacer. */
  readonly addedLagMs: number;
}

/** Throws if a text is no string. */
export function expectString(text: unknown): void {
  if (typeof text !== "string") throw new TypeError(`text is ${String(text)}; expected a string`);
}

export class Pacer {
  readonly #lagMs: number;
  readonly #waitMs: number;
  readonly #fixed: number | undefined;
  readonly #arrivals: Arrivals;
  readonly #timeline: Timeline;
  #startMs: number | undefined;
  #nowMs = -Infinity;
  #queue: Unit[] = [];
  #first = 0; // of the queue; what is before it has become due
  #tail: string[] = []; // graphemes of a word that may go on
  #tailMs = 0;
  #ready: Unit[] = [];
  #ended = false;
  #through = false;
  // The reader has still `#rest` graphemes of the last unit to take at `#anchorMs`.
  #rate = 0;
  #rest = 0;
  #anchorMs = -Infinity;
  #latestMs = -Infinity;
  #addedLagMs = 0;

  constructor(options: PacerOptions = {}) {
    const settings = settingsOf(options);
    this.#lagMs = settings.lagMs;
    this.#waitMs = settings.lagMs < Infinity ? settings.lagMs * WAIT_SHARE : WAIT_MAX_MS;
    this.#fixed = settings.fixedPerMs;
    this.#arrivals = new Arrivals(settings.lagMs);
    this.#timeline = new Timeline(settings.ttftS, settings.readerPerS);
    this.#startMs = options.startMs;
  }

  /** Latest time that it was given. */
  get now(): number {
    return this.#nowMs;
  }

  /** When the next text is due; undefined if nothing is pending. */
  get wakeAt(): number | undefined {
    return this.#ready.length > 0 ? this.#nowMs : this.#dueMs();
  }

  /** True when the text has ended and all of it is released. */
  get done(): boolean {
    return this.#ended && this.#ready.length === 0 && this.#pending === 0 && this.#tail.length === 0;
  }

  /** Takes text that has arrived. Throws, and changes nothing, if it is no string or the text has ended. */
  push(text: string, now: number): void {
    expectString(text);
    if (this.#ended) throw new RangeError("text after the end of the text");
    this.#advance(now);
    if (text === "") return;
    const nowMs = this.#nowMs;
    this.#startMs ??= nowMs;
    const pieces = graphemes(this.#tail.join("") + text);
    this.#arrivals.add(pieces.length - this.#tail.length, nowMs);
    if (this.#tail.length === 0) this.#tailMs = nowMs;
    const { complete, tail } = words(pieces);
    for (const unit of complete) {
      this.#queue.push({ text: unit.join(""), size: unit.length, arrivalMs: this.#tailMs });
      this.#tailMs = nowMs;
    }
    this.#tail = tail;
    this.#schedule();
  }

  /** Ends the last word: the next text begins another one. */
  close(now: number): void {
    this.#advance(now);
    this.#closeTail();
    this.#schedule();
  }

  /** Ends the text. What is pending stays paced; a second call does nothing. */
  end(now: number): void {
    this.close(now);
    this.#ended = true;
  }

  /** Makes all that is pending due at once: after an abort, or when no one looks. */
  flush(now: number): void {
    this.#advance(now);
    this.#flush();
  }

  /** Begins or ends to release text as it arrives: on a hidden page, or where motion is to be reduced. */
  passThrough(on: boolean, now: number): void {
    this.#advance(now);
    this.#through = on;
    if (on) this.#flush();
  }

  /** Returns the text that has become due since the last call. */
  release(now: number): string {
    return this.releaseUnits(now).join("");
  }

  /** Returns the same as `release`, each unit apart. */
  releaseUnits(now: number): string[] {
    this.#advance(now);
    const ready = this.#ready;
    this.#ready = [];
    const first = ready[0];
    if (first !== undefined && this.#startMs !== undefined) {
      this.#addedLagMs = Math.max(this.#addedLagMs, this.#nowMs - first.arrivalMs);
      const size = ready.reduce((sum, unit) => sum + unit.size, 0);
      this.#timeline.deliver(size, Math.max(0, (this.#nowMs - this.#startMs) / 1000));
    }
    return ready.map((unit) => unit.text);
  }

  /** Returns the reader's experience of what was released so far. */
  report(): PacerReport {
    const lived = this.#timeline;
    return {
      graphemes: lived.graphemes,
      firstWaitMs: lived.firstWaitS * 1000,
      idleMs: lived.lateS * 1000,
      stalls: lived.stalls,
      qoeStar: lived.qoeStar,
      addedLagMs: this.#addedLagMs,
    };
  }

  get #pending(): number {
    return this.#queue.length - this.#first;
  }

  /** Moves what is due to `#ready`. A clock that falls stands still. */
  #advance(now: number): void {
    if (!Number.isFinite(now)) throw new RangeError(`now is ${now}; expected a finite time`);
    this.#nowMs = Math.max(this.#nowMs, now);
    for (;;) {
      const dueMs = this.#dueMs();
      if (dueMs === undefined || dueMs > this.#nowMs) return;
      const unit = this.#take() ?? this.#cutTail();
      this.#ready.push(unit);
      this.#anchorMs = this.#latestMs = dueMs;
      this.#rest = unit.size;
    }
  }

  #dueMs(): number | undefined {
    const first = this.#queue[this.#first];
    if (first !== undefined) return Math.min(this.#pacedMs(), first.arrivalMs + this.#lagMs);
    const tail = this.#tail[0];
    if (tail === undefined) return undefined;
    const lastMs = this.#tailMs + this.#lagMs;
    if (this.#tail.length === 1 && isOpen(tail)) {
      if (endsInHalf(tail)) return undefined; // half a character is not text
      return lastMs < Infinity ? lastMs : this.#tailMs + this.#waitMs;
    }
    const started = this.#latestMs > -Infinity;
    return Math.min(Math.max(this.#pacedMs(), this.#tailMs + (started ? this.#waitMs : 0)), lastMs);
  }

  /** Returns when the rate allows the next unit. */
  #pacedMs(): number {
    if (this.#rest === 0) return this.#anchorMs;
    const pacedMs = this.#rate > 0 ? this.#anchorMs + this.#rest / this.#rate : Infinity;
    if (this.#fixed !== undefined) return pacedMs;
    // A slow arrival is not made slower: after a while the next unit may come in any case.
    return Math.min(pacedMs, Math.max(this.#anchorMs, this.#latestMs + this.#waitMs));
  }

  /** Chooses the rate anew after an arrival: as fast as the text arrives, or as the largest lag demands. */
  #schedule(): void {
    const nowMs = this.#nowMs;
    if (this.#rest > 0) this.#rest = Math.max(0, this.#rest - (nowMs - this.#anchorMs) * this.#rate);
    this.#anchorMs = nowMs;
    this.#rate = this.#fixed ?? CATCH_UP * this.#arrivals.perMs;
    if (this.#lagMs < Infinity) this.#rate = Math.max(this.#rate, this.#needed(nowMs));
    if (this.#through) this.#flush();
  }

  /** Returns the least rate at which each pending unit is in time, evenly from now on. */
  #needed(nowMs: number): number {
    let needed = 0;
    let before = this.#rest;
    for (let at = this.#first; at < this.#queue.length; at++) {
      const unit = this.#queue[at]!;
      const leftMs = unit.arrivalMs + this.#lagMs - nowMs;
      if (leftMs > 0) needed = Math.max(needed, before / leftMs);
      before += unit.size;
    }
    return needed;
  }

  /** Takes the first unit of the queue, if there is one. */
  #take(): Unit | undefined {
    const unit = this.#queue[this.#first];
    if (unit === undefined) return undefined;
    this.#first += 1;
    if (this.#first === this.#queue.length) {
      this.#queue = [];
      this.#first = 0;
    }
    return unit;
  }

  /** Takes what there is of the last word, without a grapheme that is known to be incomplete. */
  #cutTail(): Unit {
    const last = this.#tail[this.#tail.length - 1]!;
    const end = this.#tail.length - (this.#tail.length > 1 && isOpen(last) ? 1 : 0);
    const cut = this.#tail.slice(0, end);
    this.#tail = this.#tail.slice(end);
    return { text: cut.join(""), size: cut.length, arrivalMs: this.#tailMs };
  }

  #closeTail(): void {
    if (this.#tail.length === 0) return;
    this.#queue.push({ text: this.#tail.join(""), size: this.#tail.length, arrivalMs: this.#tailMs });
    this.#tail = [];
  }

  #flush(): void {
    const last = this.#tail[this.#tail.length - 1];
    const half = last !== undefined && endsInHalf(last) && !this.#ended ? this.#tail.pop() : undefined;
    this.#closeTail();
    this.#ready = this.#ready.concat(this.#queue.slice(this.#first));
    this.#queue = [];
    this.#first = 0;
    this.#rest = 0;
    if (half !== undefined) this.#tail = [half];
  }
}
