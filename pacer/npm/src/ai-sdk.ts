/** Pacing for the AI SDK: `streamText({ ..., experimental_transform: paced() })`. The SDK is not imported. */

import type { Shape } from "./items.js";
import { pacerStream, type StreamOptions } from "./streams.js";

/** A part of the SDK's stream, as far as it matters here (`TextStreamPart` of versions 5 and 6). */
export interface StreamPart {
  readonly type: string;
  readonly id?: string;
  readonly text?: string;
  readonly providerMetadata?: unknown;
}

const DELTAS = new Set(["text-delta", "reasoning-delta"]);
const ENDS = new Set(["text-end", "reasoning-end"]);
const ABORTS = new Set(["abort", "error"]);

/** Text and reasoning are paced. A delta with metadata of the provider passes as it is, like any other part. */
const PARTS: Shape<StreamPart> = {
  textOf: (part) => (DELTAS.has(part.type) && part.providerMetadata == null ? part.text : undefined),
  withText: (part, text) => ({ ...part, text }),
  keyOf: (part) => `${part.type} ${part.id}`,
  isEnd: (part) => ENDS.has(part.type),
  isAbort: (part) => ABORTS.has(part.type),
};

/** Returns a transform for `experimental_transform`, which the SDK calls once per stream. */
export function paced<PART extends StreamPart = any>(
  options: StreamOptions = {},
): (call: { tools: any; stopStream: () => void }) => TransformStream<PART, PART> {
  return () => pacerStream(options, PARTS as unknown as Shape<PART>);
}
