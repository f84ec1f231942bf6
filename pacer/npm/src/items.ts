/**
 * Pacing of a stream of items, such as chunks of an API, of which only some carry text.
 *
 * Text is cut anew; what carries none passes in its place, after all text before it.
 */

import type { Pacer } from "./pacer.js";

/** Way to read and write the text of an item. */
export interface Shape<T> {
  /** Text of an item; empty or undefined if it passes as it is. */
  textOf(item: T): string | undefined;
  /** Item like another one, with another text. */
  withText(item: T, text: string): T;
  /** Which text an item belongs to: words never span two. */
  keyOf?(item: T): string;
  /** True for an item that ends the stream early: what is pending is shown at once. */
  isAbort?(item: T): boolean;
}

/** Items that are the text. */
export const TEXT: Shape<string> = { textOf: (text) => text, withText: (_, text) => text };

/** Text of one key, with its last item and its end, in characters from the begin of all text; or an item without. */
type Entry<T> = { readonly key: string; item: T; end: number } | { readonly key: undefined; readonly item: T };

/** Pacer of items, in their order. Its caller has the clock, as with `Pacer`. */
export class ItemPacer<T> {
  readonly pacer: Pacer;
  readonly #shape: Shape<T>;
  #order: Entry<T>[] = [];
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
    if (text === undefined || text === "") {
      this.pacer.close(now);
      if (this.#shape.isAbort?.(item)) this.pacer.flush(now);
      this.#order.push({ key: undefined, item });
      return;
    }
    const key = this.#shape.keyOf?.(item) ?? "";
    let run = this.#order[this.#order.length - 1];
    if (run === undefined || run.key === undefined || run.key !== key) {
      this.pacer.close(now);
      run = { key, item, end: this.#pushed };
      this.#order.push(run);
    }
    this.pacer.push(text, now);
    this.#pushed += text.length;
    run.item = item;
    run.end = this.#pushed;
  }

  /** Ends the stream. What is pending stays paced. */
  end(now: number): void {
    this.pacer.end(now);
  }

  /** Makes all that is pending due at once. */
  flush(now: number): void {
    this.pacer.flush(now);
  }

  /** Returns the items that are due; those without text as soon as the text before them is out. */
  release(now: number): T[] {
    let text = this.pacer.release(now);
    const items: T[] = [];
    let entry: Entry<T> | undefined;
    while ((entry = this.#order[0]) !== undefined) {
      if (entry.key === undefined) {
        items.push(entry.item);
      } else {
        const size = Math.min(text.length, entry.end - this.#released);
        if (size > 0) items.push(this.#shape.withText(entry.item, text.slice(0, size)));
        text = text.slice(size);
        this.#released += size;
        if (this.#released < entry.end) break;
      }
      this.#order.shift();
    }
    return items;
  }
}
