/** Options of a pacer. */
export interface PacerOptions {
  /** Tokens per second, for speech; "auto" (the default) follows the measured rate of arrival. */
  readonly rate?: number | "auto" | undefined;
  /**
   * Longest that a character waits, milliseconds. Default: 300 with rate "auto"; no limit with a fixed rate, whose
   * listener takes text at that pace however far the model is.
   */
  readonly maxLagMs?: number | undefined;
  /** Characters that count as one token, in `rate` and in the report. Default 4: English text. */
  readonly graphemesPerToken?: number | undefined;
  /** When the reader of the report expects the first token, milliseconds from the request. Default 1000. */
  readonly ttftMs?: number | undefined;
  /** Pace of that reader. Default: a fixed `rate`, else 4.8 (reading). */
  readonly readerTokensPerS?: number | undefined;
  /** When the request was sent, on the caller's clock, for the report. Default: at the first text. */
  readonly startMs?: number | undefined;
}

const LAG_MAX_MS = 300;
const GRAPHEMES_PER_TOKEN = 4;
const TTFT_MS = 1000;
/** Pace of reading, tokens per second (Andes, table 2). */
const READING_TOKENS_PER_S = 4.8;

/** Options with all defaults filled in. */
export interface Settings {
  /** Graphemes per millisecond; undefined if it is measured. */
  readonly fixedPerMs: number | undefined;
  /** Longest lag, milliseconds; Infinity without a limit. */
  readonly lagMs: number;
  readonly ttftS: number;
  readonly readerPerS: number;
}

/** Checks the options and fills in the defaults; a RangeError names the option that is wrong. */
export function settingsOf(options: PacerOptions): Settings {
  const { rate = "auto", maxLagMs, graphemesPerToken = GRAPHEMES_PER_TOKEN, ttftMs = TTFT_MS } = options;
  if (rate !== "auto") check("rate", rate, true, 'a number above 0, or "auto"');
  if (maxLagMs !== undefined) check("maxLagMs", maxLagMs, false, "a number of 0 or more");
  check("graphemesPerToken", graphemesPerToken, true, "a number above 0");
  check("ttftMs", ttftMs, false, "a number of 0 or more");
  const readerTokensPerS = options.readerTokensPerS ?? (rate === "auto" ? READING_TOKENS_PER_S : rate);
  check("readerTokensPerS", readerTokensPerS, true, "a number above 0");
  return {
    fixedPerMs: rate === "auto" ? undefined : (rate * graphemesPerToken) / 1000,
    lagMs: maxLagMs ?? (rate === "auto" ? LAG_MAX_MS : Infinity),
    ttftS: ttftMs / 1000,
    readerPerS: readerTokensPerS * graphemesPerToken,
  };
}

function check(name: string, value: unknown, aboveZero: boolean, expected: string): void {
  const fits = typeof value === "number" && Number.isFinite(value) && (aboveZero ? value > 0 : value >= 0);
  if (!fits) throw new RangeError(`${name} is ${JSON.stringify(value) ?? String(value)}; expected ${expected}`);
}
