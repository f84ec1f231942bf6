/**
 * Pacing of a stream of items, such as chunks of an API, of which only some carry text.
 *
 * Text is cut anew; what carries none passes in its place, after all text before it, and ends a word. An item with
 * empty text ends none: it follows the word that it came in.
 */

import { endsInHalf } from "./graphemes.js";
import { expectString, type Pacer } from "./pacer.js";

/** Way to read and write the text of an item. */
export interface Shape<T> {
  /** Text of an item; undefined if it has none. With empty text, too, it passes as it is. */
  textOf(item: T): string | undefined;
  /** Item like another one, with another text. */
  withText(item: T, text: string): T;
  /** Which text an item belongs to: words never span two. */
  keyOf?(item: T): string;
  /** True for an item that ends the stream early: what is pending is shown at once. */
  isAbort?(item: T): boolean;
  /** True for an item without text that ends a text: it comes after half a character as well. */
  isEnd?(item: T): boolean;
}

/** Items that are the text. */
export const TEXT: Shape<string> = { textOf: (text) => text, withText: (_, text) => text };

/** Text of one key; places are characters from the begin of all text. */
interface Run<T> {
  readonly key: string;
  /** Its last item with text. */
  item: T;
  end: number;
  /** Items with empty text that have not passed, and their places. */
  readonly blanks: { readonly place: number; readonly item: T }[];
}

/** An item without text. */
interface Passing<T> {
  readonly key: undefined;
  readonly item: T;
}

/** Pacer of items, in their order. Its caller has the clock, as with `Pacer`. */
export class ItemPacer<T> {
  readonly pacer: Pacer;
  readonly #shape: Shape<T>;
  // First halves of surrogate pairs, by key, with their items: the other half may come after an item without text.
  readonly #halves = new Map<string, { readonly item: T; readonly half: string }>();
  #order: (Run<T> | Passing<T>)[] = [];
  #pushed = 0;
  #released = 0;

  constructor(pacer: Pacer, shape: Shape<T>) {
    this.pacer = pacer;
    this.#shape = shape;
  }

  /** When the next item is due; undefined if nothing is pending. */
  get wakeAt(): number | undefined {
    const first = this.#order[0];
    return first !== undefined && first.key === undefined ? this.pacer.now : this.pacer.wakeAt;
  }

  /** True when the stream has ended and all of it is released. */
  get done(): boolean {
    return this.pacer.done && this.#order.length === 0;
  }

  /** Takes an item that has arrived. */
  push(item: T, now: number): void {
    const text = this.#shape.textOf(item);
    if (text === undefined) this.#pass(item, now);
    else if (text === "") this.#pushBlank(item, now);
    else this.#pushText(item, text, now);
  }

  #pass(item: T, now: number): void {
    const isAbort = this.#shape.isAbort?.(item) === true;
    if (isAbort || this.#shape.isEnd?.(item)) this.#pushHalves(now);
    this.pacer.close(now);
    if (isAbort) this.pacer.flush(now);
    this.#order.push({ key: undefined, item });
  }

  #pushText(item: T, text: string, now: number): void {
    expectString(text); // else the half before it would make it one
    const key = this.#shape.keyOf?.(item) ?? "";
    const whole = (this.#halves.get(key)?.half ?? "") + text;
    const end = whole.length - (endsInHalf(whole) ? 1 : 0);
    this.#pushWhole(key, item, whole.slice(0, end), now);
    if (end < whole.length) this.#halves.set(key, { item, half: whole.slice(end) });
    else this.#halves.delete(key);
  }

  #pushWhole(key: string, item: T, text: string, now: number): void {
    this.pacer.push("", now); // half a character is no arrival, but has a time
    if (text === "") return;
    let run = this.#order[this.#order.length - 1];
    if (run === undefined || run.key === undefined || run.key !== key) {
      this.pacer.close(now);
      run = { key, item, end: this.#pushed, blanks: [] };
      this.#order.push(run);
    }
    this.pacer.push(text, now);
    this.#pushed += text.length;
    run.item = item;
    run.end = this.#pushed;
  }

  #pushHalves(now: number): void {
    for (const [key, { item, half }] of this.#halves) this.#pushWhole(key, item, half, now);
    this.#halves.clear();
  }

  #pushBlank(item: T, now: number): void {
    this.pacer.push("", now); // it is no arrival, but has a time
    const run = this.#order[this.#order.length - 1];
    if (run === undefined || run.key === undefined) this.#order.push({ key: undefined, item });
    else run.blanks.push({ place: this.#pushed, item });
  }

  /** Ends the stream. What is pending stays paced. */
  end(now: number): void {
    this.#pushHalves(now);
    this.pacer.end(now);
  }

  /** Makes all that is pending due at once. */
  flush(now: number): void {
    this.pacer.flush(now);
  }

  /** Returns the items that are due; those without text as soon as the text before them is out. */
  release(now: number): T[] {
    const units = this.pacer.releaseUnits(now).values();
    const items: T[] = [];
    let first: Run<T> | Passing<T> | undefined;
    while ((first = this.#order[0]) !== undefined) {
      if (first.key === undefined) {
        items.push(first.item);
      } else {
        for (const item of this.#releasedOf(first, units)) items.push(item);
        if (this.#released < first.end) break;
      }
      this.#order.shift();
    }
    return items;
  }

  /** Yields the text of a run that is out, each item with empty text after the unit that it came in. */
  *#releasedOf(run: Run<T>, units: Iterator<string>): Generator<T> {
    let blank: { readonly place: number; readonly item: T } | undefined;
    while ((blank = run.blanks[0]) !== undefined) {
      yield* this.#textUntil(blank.place, run, units);
      if (this.#released < blank.place) return;
      run.blanks.shift();
      yield blank.item;
    }
    yield* this.#textUntil(run.end, run, units);
  }

  *#textUntil(place: number, run: Run<T>, units: Iterator<string>): Generator<T> {
    let text = "";
    while (this.#released < place) {
      const unit = units.next();
      if (unit.done) break;
      text += unit.value;
      this.#released += unit.value.length;
    }
    if (text !== "") yield this.#shape.withText(run.item, text);
  }
}
