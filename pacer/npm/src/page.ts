/** The page that shows the text: while it is hidden, or its reader prefers reduced motion, text is not paced. */

/** What a page says; `document` and `matchMedia` of a browser fit. */
export interface Page {
  readonly document?: (EventTarget & { readonly visibilityState: string }) | undefined;
  readonly matchMedia?: ((query: string) => EventTarget & { readonly matches: boolean }) | undefined;
}

const REDUCED_MOTION = "(prefers-reduced-motion: reduce)";

/**
 * Calls back with true when text is to pass through, and with false when it may be paced; at once and after each
 * change. Returns how to stop. Without a page (Node) text is paced.
 */
export function watchPage(onChange: (passThrough: boolean) => void, page: Page = globalThis): () => void {
  const document = page.document;
  const motion = page.matchMedia?.(REDUCED_MOTION);
  const change = (): void => onChange(document?.visibilityState === "hidden" || motion?.matches === true);
  document?.addEventListener("visibilitychange", change);
  motion?.addEventListener("change", change);
  change();
  return () => {
    document?.removeEventListener("visibilitychange", change);
    motion?.removeEventListener("change", change);
  };
}
