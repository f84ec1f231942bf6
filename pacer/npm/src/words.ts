/**
 * Units that are shown whole: a word with the white space before it.
 *
 * Scripts that put no spaces between words break at each grapheme. Not `Intl.Segmenter`'s words: those come from
 * dictionaries that differ between browsers.
 */

/** Longest unit: a longer word, such as an address, is shown in pieces. */
export const GRAPHEMES_MAX = 20;

const SPACE = /^[ \t\n\r\f\v\u1680\u2000-\u2006\u2008-\u200a\u2028\u2029\u205f\u3000]/;

const UNSPACED: readonly (readonly [number, number])[] = [
  [0x0e00, 0x0eff], // Thai, Lao
  [0x1000, 0x109f], // Burmese
  [0x1780, 0x17ff], // Khmer
  [0x2e80, 0x2fdf], // radicals
  [0x3001, 0x30ff], // punctuation, Hiragana, Katakana
  [0x31f0, 0x31ff],
  [0x3400, 0x4dbf], // Han
  [0x4e00, 0x9fff],
  [0xf900, 0xfaff],
  [0xff00, 0xff9f], // full-width forms
  [0x20000, 0x3ffff],
];

/** Divides graphemes into complete units, and a last one that more text may continue. */
export function words(pieces: readonly string[]): { complete: string[][]; tail: string[] } {
  const complete: string[][] = [];
  let tail: string[] = [];
  let inWord = false;
  let breaksAfter = false;
  for (const piece of pieces) {
    const space = SPACE.test(piece);
    const unspaced = isUnspaced(piece);
    const ends = inWord && (space || unspaced || breaksAfter);
    if (tail.length > 0 && (ends || tail.length === GRAPHEMES_MAX)) {
      complete.push(tail);
      tail = [];
      inWord = false;
    }
    tail.push(piece);
    inWord ||= !space;
    breaksAfter = unspaced;
  }
  return { complete, tail };
}

function isUnspaced(piece: string): boolean {
  const point = piece.codePointAt(0) ?? 0;
  return point >= 0x0e00 && UNSPACED.some(([first, last]) => first <= point && point <= last);
}
