// Light or dark: as the system has it, or as chosen.

const KEY = "qlm-theme";
const system = matchMedia("(prefers-color-scheme: dark)");

/** Keep the theme as chosen in a menu; `onChange` is called after each change. */
export function theme(menu, onChange) {
  const apply = () => {
    const chosen = menu.value === "auto" ? (system.matches ? "dark" : "light") : menu.value;
    document.documentElement.dataset.theme = chosen;
    onChange();
  };
  menu.value = localStorage.getItem(KEY) ?? "auto";
  menu.addEventListener("change", () => {
    localStorage.setItem(KEY, menu.value);
    apply();
  });
  system.addEventListener("change", apply);
  apply();
}
