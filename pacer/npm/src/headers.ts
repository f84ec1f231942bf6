/** Returns the headers that ask a QLM gateway for tokens at a pace: that at which a pacer will release them. */
export function headers(tokensPerS: number): { "x-slo-tokens-per-s": string } {
  if (!(tokensPerS >= 0.01 && tokensPerS <= 10000)) {
    throw new RangeError(`tokensPerS is ${tokensPerS}; expected a number from 0.01 to 10000`);
  }
  return { "x-slo-tokens-per-s": String(Number(tokensPerS.toPrecision(12))) };
}
