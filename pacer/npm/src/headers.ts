/** Returns the headers that ask a QLM gateway for tokens at a pace: that at which a pacer will release them. */
export function headers(tokensPerS: number): { "x-slo-tokens-per-s": string } {
  if (!(tokensPerS > 0 && tokensPerS < Infinity)) {
    throw new RangeError(`tokensPerS is ${tokensPerS}; expected a number above 0`);
  }
  return { "x-slo-tokens-per-s": String(Number(tokensPerS.toPrecision(12))) };
}
