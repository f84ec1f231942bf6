/** Measured rate of arrival of a text: a mean that forgets within about a second. */

/** Time over which arrivals count: after a gap g, older ones by the factor memory / (memory + g). */
const MEMORY_MS = 1000;

/**
 * Arrivals of text, and their rate.
 *
 * A gap longer than what may be bridged counts only as long as that: the text before it cannot be spread further,
 * and a pause for a tool call says nothing about the pace of what follows.
 */
export class Arrivals {
  readonly #gapMaxMs: number;
  #graphemes = 0;
  #spanMs = 0;
  #latest = 0;
  #latestMs: number | undefined;

  constructor(gapMaxMs: number) {
    this.#gapMaxMs = gapMaxMs;
  }

  /** Takes an arrival: its graphemes belong to the gap that follows. */
  add(graphemes: number, nowMs: number): void {
    if (this.#latestMs !== undefined) {
      const gapMs = Math.min(nowMs - this.#latestMs, this.#gapMaxMs);
      const weight = MEMORY_MS / (MEMORY_MS + gapMs);
      this.#graphemes = this.#graphemes * weight + this.#latest;
      this.#spanMs = this.#spanMs * weight + gapMs;
    }
    this.#latest = graphemes;
    this.#latestMs = nowMs;
  }

  /** Graphemes per millisecond; 0 before it is known. */
  get perMs(): number {
    return this.#spanMs > 0 ? this.#graphemes / this.#spanMs : 0;
  }
}
