// colors.js - a colour for each owner and use of a page, safe for colour-blind readers.
//
// An owner has a hue of its own, from the eight of Okabe and Ito, and keeps it: it depends on the
// id alone.  Models beyond eight get the same hues, lighter or darker.  The use of a page is how
// much of the hue is left, and a pattern where a cell has room for one; so weights, keys and
// values, and cache differ without any hue, too.

const HUES = [ // r, g, b
    [86, 180, 233], [230, 159, 0], [0, 158, 115], [204, 121, 167], [0, 114, 178], [213, 94, 0],
    [190, 176, 40], [140, 120, 200],
];
// The colours of uses where the map is coloured by use, and of the bars.
const BY_USE = {
    1: [0, 114, 178], 2: [230, 159, 0], 3: [0, 158, 115], 4: [86, 180, 233], 5: [204, 121, 167],
    6: [213, 94, 0], 8: [140, 140, 140],
};
// How much of the hue is left beside the background, by use, in the two colours of the pattern.
const STRENGTH = {
    1: [1, 1], 2: [0.74, 0.74], 3: [0.5, 0.24], 4: [0.85, 0.4], 5: [0.6, 0.12], 6: [0.9, 0.05],
    8: [0.6, 0.6],
};

export const dark = () => getComputedStyle(document.documentElement).colorScheme.trim() === "dark";

function mix(a, b, part) {
    return a.map((x, i) => Math.round(x * part + b[i] * (1 - part)));
}

/** @returns {number[]} the hue of a model */
export function ownerHue(id, isDark = dark()) {
    if (id < 0) return [140, 140, 140];
    const base = HUES[id % HUES.length];
    const ring = Math.floor(id / HUES.length) % 4;
    const toward = ring % 2 ? [255, 255, 255] : [0, 0, 0];
    const strength = [1, 0.62, 0.68, 0.4][ring];
    const hue = mix(base, toward, strength);
    return isDark ? mix(hue, [255, 255, 255], 0.94) : mix(hue, [0, 0, 0], 0.9);
}

const rgb = (c) => "rgb(" + c.join(", ") + ")";
export const ownerColor = (id) => rgb(ownerHue(id));
export const useColor = (use) => rgb(BY_USE[use] || [140, 140, 140]);

/** Little-endian RGBA, as ImageData has it on every machine that runs Chromium. */
const packed = ([r, g, b]) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;

/**
 * The colours of page codes: two for each code, which differ where the use has a pattern.  With
 * `by` "use" owners do not matter; with `only` >= 0 the pages of all other owners are faint.
 */
export class Palette {
    constructor() {
        this.by = "owner";
        this.alone = -1;
        this.renew();
    }

    /** After a change of the scheme, of `by` or of `only`. */
    renew() {
        this.dark = dark();
        this.free = this.dark ? [39, 45, 55] : [228, 232, 238];
        this.absent = this.dark ? [30, 34, 42] : [243, 245, 248];
        this.a = [];
        this.b = [];
    }

    set(by, only) {
        if (by === this.by && only === this.alone) return false;
        this.by = by;
        this.alone = only;
        this.renew();
        return true;
    }

    /** The two colours of a code, made when they are first needed. */
    make(code) {
        const use = code & 15;
        const owner = (code >>> 4) - 1;
        let first = this.free;
        let second = this.free;
        if (use === 7) {
            first = this.absent;
            second = this.free;
        } else if (use !== 0) {
            const byUse = BY_USE[use] || [140, 140, 140];
            const hue = this.by === "use" ? byUse : ownerHue(owner, this.dark);
            let [s, t] = STRENGTH[use] || [0.6, 0.6];
            if (this.by === "use") [s, t] = [1, use > 3 && use !== 8 ? 0.45 : 1];
            const faint = this.alone >= 0 && owner !== this.alone ? 0.16 : 1;
            first = mix(hue, this.free, s * faint);
            second = mix(hue, this.free, t * faint);
        }
        this.a[code] = packed(first);
        this.b[code] = packed(second);
    }

    /** Colours for elements of the page: of a swatch. */
    css(code) {
        if (this.a[code] === undefined) this.make(code);
        const c = this.a[code];
        return rgb([c & 255, (c >>> 8) & 255, (c >>> 16) & 255]);
    }
}
