// Two hues: warm for full attention, cool for Gated DeltaNet; light to dark by size. The ends come with the page.
"use strict";

const PALETTE = JSON.parse(document.getElementById("palette").textContent);

function dark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

/** kind: full_attention or linear_attention; share from 0 to 1 -> "#rrggbb". */
function shade(kind, share) {
  const [low, high] = PALETTE[dark() ? "dark" : "light"][kind === "full_attention" ? "warm" : "cool"];
  const part = (hex, i) => parseInt(hex.slice(1 + 2 * i, 3 + 2 * i), 16);
  const t = Math.min(1, Math.max(0, share));
  return "#" + [0, 1, 2].map((i) => Math.round(part(low, i) + t * (part(high, i) - part(low, i))).toString(16).padStart(2, "0")).join("");
}

/** Values to shares of the way from the least to the most; by the logarithm where all are positive and far apart. */
function scaled(values) {
  const known = values.filter((v) => v !== null && Number.isFinite(v));
  if (!known.length) return values.map(() => 0);
  const low = Math.min(...known), high = Math.max(...known);
  if (low === high) return values.map(() => 0.5);
  const logarithmic = low > 0 && high / low > 4;
  return values.map((v) => (v === null ? 0 : logarithmic ? Math.log(v / low) / Math.log(high / low) : (v - low) / (high - low)));
}
