/**
 * Paced streams: `pace` for async iterables, `pacerStream` for pipes, over text or any other kind of item.
 *
 * Both read their source as it comes: only so is the arrival known. What was read and not taken waits in memory.
 */

import { ItemPacer, TEXT, type Shape } from "./items.js";
import type { PacerOptions } from "./options.js";
import { watchPage, type Page } from "./page.js";
import { Pacer, type PacerReport } from "./pacer.js";

/** Longest wait of a timer: one of more than 31 bits fires at once. */
const TIMER_MAX_MS = 2 ** 31 - 1;

export interface StreamOptions extends PacerOptions {
  /** Aborted: what is pending is shown at once, and the stream ends there. */
  readonly signal?: AbortSignal | undefined;
  /** Called with the reader's experience when the stream has ended. Its error ends the stream, after all items. */
  readonly onReport?: ((report: PacerReport) => void) | undefined;
  /** The page that shows the text. Default: that of the browser. */
  readonly page?: Page | undefined;
  /** Clock, milliseconds. Default: `performance.now`. */
  readonly clock?: (() => number) | undefined;
}

/** What a function of the caller has thrown. */
interface Failure {
  readonly error: unknown;
}

/** Where a pump puts what is due. */
interface Outlet<T> {
  emit(item: T): void;
  /** Called once, after the last item; not if the pump is dropped. */
  close(failure: Failure | undefined): void;
}

/** A pacer of items with a clock, a timer, a page and a signal: each item goes to its outlet when it is due. */
class Pump<T> {
  readonly #items: ItemPacer<T>;
  readonly #clock: () => number;
  readonly #outlet: Outlet<T>;
  readonly #options: StreamOptions;
  readonly #unwatch: () => void;
  readonly #onAbort = (): void => this.abort();
  readonly #ended: Promise<void>;
  #resolve!: () => void;
  #reject!: (error: unknown) => void;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #stopped = false;

  constructor(shape: Shape<T>, options: StreamOptions, outlet: Outlet<T>) {
    this.#clock = options.clock ?? (() => performance.now());
    const startMs = options.startMs ?? this.#clock();
    this.#items = new ItemPacer(new Pacer({ ...options, startMs }), shape);
    this.#outlet = outlet;
    this.#options = options;
    this.#ended = new Promise((resolve, reject) => {
      this.#resolve = resolve;
      this.#reject = reject;
    });
    this.#ended.catch(() => {}); // the outlet has the error; none has to wait for the end
    this.#unwatch = watchPage((on) => {
      this.#items.pacer.passThrough(on, this.#clock());
      this.#run();
    }, options.page);
    if (options.signal?.aborted) this.abort();
    else options.signal?.addEventListener("abort", this.#onAbort, { once: true });
  }

  /** Takes an item; ignored after the end. */
  push(item: T): void {
    if (this.#stopped) return;
    this.#items.push(item, this.#clock());
    this.#run();
  }

  /** Ends the stream. Settles when all of it is out or the pump is dropped; rejects with what has failed. */
  end(): Promise<void> {
    if (!this.#stopped) {
      this.#items.end(this.#clock());
      this.#run();
    }
    return this.#ended;
  }

  /** Shows at once what is pending, and ends the stream. */
  abort(): void {
    if (this.#stopped) return;
    const now = this.#clock();
    this.#items.end(now);
    this.#items.flush(now); // last: before the end it leaves half a character
    this.#run();
  }

  /** Ends without showing anything more: the consumer is gone. Settles as `end` does. */
  drop(): Promise<void> {
    this.#stop();
    return this.#ended;
  }

  /** Emits what is due. In a timer nobody would catch an error: the outlet is told. */
  #run(): void {
    if (this.#stopped) return;
    clearTimeout(this.#timer);
    let failure: Failure | undefined;
    try {
      for (const item of this.#items.release(this.#clock())) this.#outlet.emit(item);
      if (!this.#items.done) return this.#wait();
    } catch (error) {
      failure = { error };
    }
    this.#outlet.close(this.#stop(failure));
  }

  #wait(): void {
    const wakeAt = this.#items.wakeAt;
    if (wakeAt === undefined) return;
    const waitMs = Math.min(Math.max(0, wakeAt - this.#clock()), TIMER_MAX_MS);
    this.#timer = setTimeout(() => this.#run(), waitMs);
  }

  /** Lets go of timer, page and signal, and reports; returns the first failure. */
  #stop(failure?: Failure): Failure | undefined {
    if (this.#stopped) return failure;
    this.#stopped = true;
    clearTimeout(this.#timer);
    this.#unwatch();
    this.#options.signal?.removeEventListener("abort", this.#onAbort);
    try {
      this.#options.onReport?.(this.#items.pacer.report());
    } catch (error) {
      failure ??= { error };
    }
    if (failure === undefined) this.#resolve();
    else this.#reject(failure.error);
    return failure;
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
  let failure: Failure | undefined;
  let notify = (): void => {};
  const iterator = source[Symbol.asyncIterator]();
  const pump = new Pump<T>(shape, options, {
    emit(item) {
      due.push(item);
      notify();
    },
    close(failed) {
      failure ??= failed;
      over = true;
      notify();
    },
  });
  const read = async (): Promise<void> => {
    try {
      for (let next = await iterator.next(); !next.done; next = await iterator.next()) {
        if (over) return;
        pump.push(next.value);
      }
      void pump.end();
    } catch (error) {
      failure ??= over ? undefined : { error };
      pump.abort();
    }
  };
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
    const dropped = pump.drop();
    // Not awaited: a source that waits for its next item would answer only after that.
    void Promise.resolve(iterator.return?.()).catch(() => {});
    // A consumer that stops early learns here what its report has thrown; an error before that comes first.
    if (failure === undefined) await dropped;
  }
}

/**
 * A pair of streams that paces the text of a pipe, as `pace` does. An abort of the signal ends the readable side after
 * what had arrived, and errors the writable side: the source is cancelled. A cancel or an abort of the pipe itself drops
 * what is pending, also after the source has ended.
 *
 * No `TransformStream`: that tells nothing of a cancel in Node 18, or while the end of the source is pending.
 */
export function pacerStream(options?: StreamOptions): TransformStream<string, string>;
export function pacerStream<T>(options: StreamOptions, shape: Shape<T>): TransformStream<T, T>;
export function pacerStream<T>(
  options: StreamOptions = {},
  shape: Shape<T> = TEXT as unknown as Shape<T>,
): TransformStream<T, T> {
  let output!: ReadableStreamDefaultController<T>;
  let input!: WritableStreamDefaultController;
  let failure: Failure | undefined;
  let gone = false; // the output, cancelled or dropped: also by the report, before the pump closes it
  const drop = (error: unknown): Promise<void> => {
    gone = true;
    output.error(error);
    return pump.drop();
  };
  const readable = new ReadableStream<T>(
    {
      start(controller) {
        output = controller;
      },
      pull: () => failure && output.error(failure.error), // all before it is read
      cancel(reason) {
        gone = true;
        input.error(reason);
        return pump.drop();
      },
    },
    // What is pending waits in the pacer, not in the pipe: the writer is never stopped by the pace.
    { highWaterMark: 0 },
  );
  const writable = new WritableStream<T>({
    start(controller) {
      input = controller;
      // While the end is pending only the signal tells of an abort; Safari has it since 16.4.
      controller.signal?.addEventListener("abort", () => void drop(controller.signal.reason));
    },
    write(item) {
      try {
        pump.push(item);
      } catch (error) {
        void drop(error);
        throw error;
      }
    },
    close: () => pump.end(),
    abort: drop,
  });
  const pump = new Pump<T>(shape, options, {
    emit: (item) => output.enqueue(item),
    close(failed) {
      if (failed === undefined) {
        if (!gone) output.close();
        // Else the source would be read to its end for nothing. Without effect if that has come already.
        if (options.signal?.aborted) input.error(options.signal.reason);
        return;
      }
      failure = failed;
      input.error(failed.error);
      if (output.desiredSize === 0) output.error(failed.error);
    },
  });
  return { readable, writable };
}
