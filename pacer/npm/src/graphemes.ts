/** Grapheme clusters: the characters that a reader sees. */

const ZWJ = "\u200d";

const segmenter =
  typeof Intl !== "undefined" && "Segmenter" in Intl
    ? new Intl.Segmenter("und", { granularity: "grapheme" })
    : undefined;

/** Divides a text into its grapheme clusters; into code points where there is no `Intl.Segmenter`. */
export function graphemes(text: string): string[] {
  if (isPlain(text)) return text.split("");
  if (segmenter === undefined) return Array.from(text);
  return Array.from(segmenter.segment(text), (each) => each.segment);
}

/** True for ASCII without a carriage return, of which each character is a grapheme: ten times as fast. */
function isPlain(text: string): boolean {
  for (let at = 0; at < text.length; at++) {
    const code = text.charCodeAt(at);
    if (code > 0x7e || code === 0x0d) return false;
  }
  return true;
}

/** True if a grapheme is known to be incomplete: it ends with a joiner, or is half a flag or half a character. */
export function isOpen(grapheme: string): boolean {
  return grapheme.endsWith(ZWJ) || endsInHalf(grapheme) || isHalfFlag(grapheme);
}

/** True if a text ends with the first half of a surrogate pair. */
export function endsInHalf(text: string): boolean {
  const last = text.charCodeAt(text.length - 1);
  return last >= 0xd800 && last <= 0xdbff;
}

function isHalfFlag(grapheme: string): boolean {
  const point = grapheme.codePointAt(0) ?? 0;
  return grapheme.length === 2 && point >= 0x1f1e6 && point <= 0x1f1ff;
}
