/**
 * Lateness of a reader: a staircase that never falls.
 *
 * Grapheme k is due at e_k = ttft + k / pace and shown at t_k. Its lateness is
 * L_k = max(0, max over j <= k of (t_j - e_j)). The last one is the idle time of the reader, and
 * QoE* = (D/2) / (D/2 + mean L), where D is the time to read all of it without a pause.
 */

/** Least growth of the lateness that counts as a stall: less is rounding. */
const STALL_S = 1e-6;

export class Timeline {
  readonly #ttftS: number;
  readonly #perS: number;
  #lateSumS = 0;
  /** Graphemes shown. */
  graphemes = 0;
  /** Lateness of the last one: the idle time so far, seconds. */
  lateS = 0;
  /** Lateness of the first one, seconds. */
  firstWaitS = 0;
  /** Deliveries after the first that the reader had to wait for. */
  stalls = 0;

  /** A reader who expects the first grapheme after `ttftS`, and then `perS` of them per second. */
  constructor(ttftS: number, perS: number) {
    this.#ttftS = ttftS;
    this.#perS = perS;
  }

  /** Takes graphemes that are shown together, seconds from the request. */
  deliver(graphemes: number, atS: number): void {
    if (graphemes <= 0) return;
    this.#rise(atS - (this.#ttftS + this.graphemes / this.#perS));
    this.#lateSumS += graphemes * this.lateS;
    this.graphemes += graphemes;
  }

  /** Quality of experience that no later grapheme raises, from 0 to 1; 0 without one. */
  get qoeStar(): number {
    if (this.graphemes === 0) return 0;
    const halfS = this.graphemes / this.#perS / 2;
    return halfS / (halfS + this.#lateSumS / this.graphemes);
  }

  #rise(lateS: number): void {
    if (lateS <= this.lateS) return;
    if (this.graphemes === 0) this.firstWaitS = lateS;
    else if (lateS > this.lateS + STALL_S) this.stalls += 1;
    this.lateS = lateS;
  }
}
