// Numbers as people read them.

export const NONE = "–";

const known = (value) => value !== null && value !== undefined && Number.isFinite(value);

/** 12345 → "12.3k" */
export function count(value) {
  if (!known(value)) return NONE;
  const size = Math.abs(value);
  if (size >= 1e9) return (value / 1e9).toFixed(1) + "G";
  if (size >= 1e6) return (value / 1e6).toFixed(1) + "M";
  if (size >= 1e4) return (value / 1e3).toFixed(1) + "k";
  return Number.isInteger(value) ? String(value) : value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : 2);
}

/** A rate per second. */
export function rate(value) {
  if (!known(value)) return NONE;
  if (value === 0) return "0";
  return value < 10 ? value.toFixed(1) : count(Math.round(value));
}

/** Microseconds, as µs, ms or s. */
export function time(us) {
  if (!known(us)) return NONE;
  if (us < 1000) return Math.round(us) + " µs";
  if (us < 1e6) return (us / 1000).toFixed(us < 1e4 ? 2 : us < 1e5 ? 1 : 0) + " ms";
  return (us / 1e6).toFixed(us < 1e7 ? 2 : 1) + " s";
}

export function bytes(value) {
  if (!known(value)) return NONE;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (value >= 1024 && at < units.length - 1) {
    value /= 1024;
    at += 1;
  }
  return (at && value < 100 ? value.toFixed(1) : Math.round(value)) + " " + units[at];
}

export function percent(share) {
  if (!known(share)) return NONE;
  return (100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0) + " %";
}

/** A GPU, by its number on its node and the end of its UUID. */
export function gpuName(gpu) {
  return `GPU ${gpu.number} …${gpu.uuid.slice(-4)}`;
}

/** The GPUs of a replica on a node, which Ray tells by number or UUID. */
export function gpusNamed(node, ids) {
  const names = ids.map((id) => {
    const gpu = node?.gpus.find((each) => String(each.number) === id || each.uuid.startsWith(id));
    return gpu ? gpuName(gpu) : `GPU ${id}`;
  });
  return names.join(", ") || "a GPU";
}

/** How many there are of something. */
export function numbered(all, name) {
  return `${all.length} ${name}${all.length === 1 ? "" : "s"}`;
}
