export { headers } from "./headers.js";
export { ItemPacer, TEXT, type Shape } from "./items.js";
export type { PacerOptions } from "./options.js";
export { Pacer, type PacerReport } from "./pacer.js";
export { watchPage, type Page } from "./page.js";
export { pace, pacerStream, type StreamOptions } from "./streams.js";
