// format.js - numbers, times and names as texts of a bounded width.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** 72,000 */
export const int = (n) => whole.format(n);

/** Digits that stay about three, so that columns keep their width: 0.4, 12, 890, 12.3k, 4.1M. */
export function short(n) {
    if (n === null || n === undefined || !isFinite(n)) return "–";
    if (n < 0) return "-" + short(-n);
    if (n === 0) return "0";
    if (n < 10 && n !== Math.round(n)) return n.toFixed(1);
    if (n < 9999.5) return whole.format(n);
    for (const [unit, size] of [["k", 1e3], ["M", 1e6], ["G", 1e9], ["T", 1e12]]) {
        if (n < size * 999.5 || unit === "T") return digits(n / size) + unit;
    }
    return String(n);
}

const digits = (x) => (x < 99.95 ? x.toFixed(1) : x.toFixed(0));

/** 96 MiB, 1.2 GiB */
export function bytes(n) {
    if (n === null || n === undefined) return "–";
    const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let i = 0;
    while (n >= 1024 && i < units.length - 1) {
        n /= 1024;
        i++;
    }
    return (n >= 99.95 || n === Math.round(n) ? n.toFixed(0) : n.toFixed(1)) + " " + units[i];
}

/** A duration of some seconds: 40 ms, 3.2 s, 4 min, 2 h 5 min, 3 d. */
export function seconds(s) {
    if (s === null || s === undefined) return "–";
    if (s < 0.9995) return Math.max(0, Math.round(s * 1000)) + " ms";
    if (s < 9.95) return s.toFixed(1) + " s";
    if (s < 99.5) return Math.round(s) + " s";
    if (s < 3600) return Math.round(s / 60) + " min";
    if (s < 86400) return Math.floor(s / 3600) + " h " + Math.floor((s % 3600) / 60) + " min";
    return Math.floor(s / 86400) + " d " + Math.floor((s % 86400) / 3600) + " h";
}

/** A time that has passed, in whole seconds at most: 12 s, 4 min, 3 h, 2 d. */
export function ago(ms) {
    const s = Math.max(0, ms / 1000);
    if (s < 100) return Math.floor(s) + " s";
    if (s < 6000) return Math.floor(s / 60) + " min";
    if (s < 172800) return Math.floor(s / 3600) + " h";
    return Math.floor(s / 86400) + " d";
}

export const millis = (ms) => (ms === null || ms === undefined ? "–" : seconds(ms / 1000));

/** 0.973 is 97 %; a part below one percent that is not zero is <1 %. */
export function percent(part) {
    if (part === null || part === undefined) return "–";
    const p = part * 100;
    return p > 0 && p < 0.5 ? "<1 %" : Math.round(p) + " %";
}

/** A part of another: "61 / 60 %", "28 / – %". */
export function ofPercent(part, other) {
    const digits = percent(part).replace(" %", "");
    return digits + " / " + (other === null ? "–" : Math.round(other * 100)) + " %";
}

const two = (n) => String(n).padStart(2, "0");

/** HH:MM:SS in the time zone of the browser. */
export function clock(ms) {
    const d = new Date(ms);
    return two(d.getHours()) + ":" + two(d.getMinutes()) + ":" + two(d.getSeconds());
}

/**
 * A foreign text on one line: control characters and marks that turn the direction of writing, with
 * which one name can look like another, are shown as a replacement character.
 */
export function plain(text) {
    const unsafe =
        /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;
    return String(text ?? "").replace(unsafe, "\ufffd");
}

/** "a", "a and b", "a, b and c" */
export function list(words) {
    if (words.length < 2) return words.join("");
    return words.slice(0, -1).join(", ") + " and " + words[words.length - 1];
}

export const plural = (n, one, many = one + "s") => int(n) + " " + (n === 1 ? one : many);
