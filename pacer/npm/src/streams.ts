/**
 * Paced streams: `pace` for async iterables, `pacerStream` for pipes, over text or any other kind of item.
 *
 * Both read their source as it comes: only so is the arrival known. What was read and not taken waits in memory.
 */

import { ItemPacer, TEXT, type Shape } from "./items.js";
import type { PacerOptions } from "./options.js";
import { watchPage, type Page } from "./page.js";
import { Pacer, type PacerReport } from "./pacer.js";

export interface StreamOptions extends PacerOptions {
  /** Aborted: what is pending is shown at once, and the stream ends there. */
  readonly signal?: AbortSignal | undefined;
  /** Called with the reader's experience when the stream has ended. */
  readonly onReport?: ((report: PacerReport) => void) | undefined;
  /** The page that shows the text. Default: that of the browser. */
  readonly page?: Page | undefined;
  /** Clock, milliseconds. Default: `performance.now`. */
  readonly clock?: (() => number) | undefined;
}

/** A pacer of items with a clock, a timer and a page, that calls `emit` with each item when it is due. */
class Pump<T> {
  readonly #items: ItemPacer<T>;
  readonly #clock: () => number;
  readonly #emit: (item: T) => void;
  readonly #options: StreamOptions;
  readonly #unwatch: () => void;
  readonly #ended: Promise<void>;
  #resolve!: () => void;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #stopped = false;

  constructor(shape: Shape<T>, options: StreamOptions, emit: (item: T) => void) {
    this.#clock = options.clock ?? (() => performance.now());
    const startMs = options.startMs ?? this.#clock();
    this.#items = new ItemPacer(new Pacer({ ...options, startMs }), shape);
    this.#emit = emit;
    this.#options = options;
    this.#ended = new Promise((resolve) => (this.#resolve = resolve));
    this.#unwatch = watchPage((on) => {
      this.#items.pacer.passThrough(on, this.#clock());
      this.#run();
    }, options.page);
  }

  /** Takes an item; ignored after an abort. */
  push(item: T): void {
    if (this.#stopped) return;
    this.#items.push(item, this.#clock());
    this.#run();
  }

  /** Ends the stream; resolves when all of it is out. */
  end(): Promise<void> {
    this.#items.end(this.#clock());
    this.#run();
    return this.#ended;
  }

  /** Shows at once what is pending, and ends the stream. */
  abort(): void {
    if (this.#stopped) return;
    this.#items.flush(this.#clock());
    void this.end();
  }

  /** Ends without showing anything more: the consumer is gone. */
  drop(): void {
    this.#stop();
  }

  #run(): void {
    if (this.#stopped) return;
    clearTimeout(this.#timer);
    for (const item of this.#items.release(this.#clock())) this.#emit(item);
    if (this.#items.done) return this.#stop();
    const wakeAt = this.#items.wakeAt;
    if (wakeAt !== undefined) {
      this.#timer = setTimeout(() => this.#run(), Math.max(0, wakeAt - this.#clock()));
    }
  }

  #stop(): void {
    if (this.#stopped) return;
    this.#stopped = true;
    clearTimeout(this.#timer);
    this.#unwatch();
    this.#options.onReport?.(this.#items.pacer.report());
    this.#resolve();
  }
}

/**
 * Yields the items of a stream in their order, their text paced.
 *
 * An error of the source is thrown after all text before it. A consumer that stops early ends the source. After an
 * abort what had arrived is yielded, and the iteration ends.
 */
export function pace(source: AsyncIterable<string>, options?: StreamOptions): AsyncGenerator<string, void>;
export function pace<T>(
  source: AsyncIterable<T>,
  options: StreamOptions,
  shape: Shape<T>,
): AsyncGenerator<T, void>;
export async function* pace<T>(
  source: AsyncIterable<T>,
  options: StreamOptions = {},
  shape: Shape<T> = TEXT as unknown as Shape<T>,
): AsyncGenerator<T, void> {
  let due: T[] = [];
  let over = false;
  let failure: { readonly error: unknown } | undefined;
  let notify = (): void => {};
  const iterator = source[Symbol.asyncIterator]();
  const pump = new Pump<T>(shape, options, (item) => {
    due.push(item);
    notify();
  });
  const finish = (): void => {
    over = true;
    notify();
  };
  const abort = (): void => {
    pump.abort();
    finish();
  };
  const read = async (): Promise<void> => {
    try {
      for (let next = await iterator.next(); !next.done; next = await iterator.next()) {
        if (over) return;
        pump.push(next.value);
      }
      await pump.end();
    } catch (error) {
      failure ??= over ? undefined : { error };
      pump.abort();
    }
    finish();
  };
  if (options.signal?.aborted) abort();
  else options.signal?.addEventListener("abort", abort, { once: true });
  if (!over) void read();
  try {
    for (;;) {
      const items = due;
      due = [];
      yield* items;
      if (due.length > 0) continue;
      if (over) break;
      await new Promise<void>((resolve) => (notify = resolve));
    }
    if (failure !== undefined) throw failure.error;
  } finally {
    over = true;
    options.signal?.removeEventListener("abort", abort);
    pump.drop();
    // Not awaited: a source that waits for its next item would answer only after that.
    void Promise.resolve(iterator.return?.()).catch(() => {});
  }
}

/** A transform that paces the text of a pipe, as `pace` does. An abort of the pipe itself drops what is pending. */
export function pacerStream(options?: StreamOptions): TransformStream<string, string>;
export function pacerStream<T>(options: StreamOptions, shape: Shape<T>): TransformStream<T, T>;
export function pacerStream<T>(
  options: StreamOptions = {},
  shape: Shape<T> = TEXT as unknown as Shape<T>,
): TransformStream<T, T> {
  let pump: Pump<T>;
  const onAbort = (): void => pump.abort();
  const drop = (): void => {
    options.signal?.removeEventListener("abort", onAbort);
    pump.drop();
  };
  const transformer: Transformer<T, T> & { cancel(): void } = {
    start(controller) {
      pump = new Pump(shape, options, (item) => controller.enqueue(item));
      if (options.signal?.aborted) pump.abort();
      else options.signal?.addEventListener("abort", onAbort, { once: true });
    },
    transform(item) {
      pump.push(item);
    },
    async flush() {
      await pump.end();
      drop();
    },
    cancel: drop,
  };
  // What is pending waits in the pacer, not in the pipe: the writer is never stopped by the pace.
  return new TransformStream(transformer, undefined, { highWaterMark: Infinity });
}
