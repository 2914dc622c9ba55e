// store.js - the state of the daemon, as far as the stream told it.
//
// `all` replaces everything; `delta` replaces whole rows, which are known by their id.  The parts
// of the page listen to topics and only note what changed: they draw in the next frame.
//
//     reset                    everything is new
//     daemon, queue            one object
//     devices, models, tenants a set of ids: rows that changed, came or went
//     history, events          new rows; an event that is known comes again with a larger n
//     pages                    a device's id and its changed runs
//     map                      a device's id: it has a map now, or one of another size

export const USES = ["free", "weights", "KV", "cached", "warm", "swapped out", "quarantine",
    "absent", "mixed"];
const ABSENT = 7;
const ROWS_MAX = 600;
const EVENTS_MAX = 256;
const CAUSED_MAX = 64; // refusals, and failures: clients cause them at any rate
const PAGES_MAX = 1 << 22; // 8 TiB of 2 MiB; a larger number is no number of pages

/** @typedef {{n: number, codes: Uint32Array}} PageMap */

export class Store {
    constructor() {
        this.topics = new Map();
        this.clear();
    }

    clear() {
        this.daemon = {};
        this.devices = new Map();
        this.models = new Map();
        this.tenants = new Map();
        this.queue = { running: 0, waiting: 0, paused: 0, places: 0, places_used: 0 };
        this.rows = [];
        this.events = [];
        /** @type {Map<number, PageMap>} */
        this.maps = new Map();
        this.skew = 0; // ms that the daemon's clock is ahead of this one
    }

    /** The daemon's clock. */
    now() {
        return Date.now() + this.skew;
    }

    on(topic, listener) {
        if (!this.topics.has(topic)) this.topics.set(topic, []);
        this.topics.get(topic).push(listener);
    }

    tell(topic, ...what) {
        for (const listener of this.topics.get(topic) || []) listener(...what);
    }

    /** @param {"all"|"delta"} event */
    apply(event, data) {
        if (event === "all") {
            this.clear();
            for (const map of data.pages || []) this.pagesNew(map);
        }
        if (data.now) this.skew = data.now - Date.now();
        const changed = {};
        for (const table of ["devices", "models", "tenants"]) {
            changed[table] = this.rowsSet(table, data);
        }
        if (data.daemon) this.daemon = data.daemon;
        if (data.queue) this.queue = data.queue;
        const rows = data.history?.rows || [];
        for (const row of rows) { // later ones: the clock was set back
            while (this.rows.length && this.rows.at(-1)[0] > row[0]) this.rows.pop();
            this.rows.push(row);
        }
        if (rows.length) this.rows = this.rows.slice(-ROWS_MAX);
        const events = (data.events || []).map((e) => this.eventSet(e));
        if (events.length) this.eventsTrim();
        if (event === "all") {
            this.tell("reset");
            return;
        }
        for (const map of data.pages || []) this.pagesSet(map);
        for (const [table, ids] of Object.entries(changed)) if (ids.size) this.tell(table, ids);
        if (data.daemon) this.tell("daemon");
        if (data.queue) this.tell("queue");
        if (rows.length) this.tell("history", rows);
        if (events.length) this.tell("events", events);
    }

    rowsSet(table, data) {
        const ids = new Set();
        for (const row of data[table] || []) {
            this[table].set(row.id, row);
            ids.add(row.id);
        }
        for (const id of data.gone?.[table] || []) {
            if (this[table].delete(id)) ids.add(id);
        }
        return ids;
    }

    eventSet(event) {
        const i = this.events.findLastIndex((e) => e.id === event.id);
        if (i >= 0) this.events[i] = event;
        else this.events.push(event);
        return event;
    }

    /** As the daemon keeps them. */
    eventsTrim() {
        for (const kind of ["refuse", "fail"]) {
            let over = this.events.filter((e) => e.kind === kind).length - CAUSED_MAX;
            if (over <= 0) continue;
            this.events = this.events.filter((e) => e.kind !== kind || over-- <= 0);
        }
        this.events = this.events.slice(-EVENTS_MAX);
    }

    pagesNew({ device, n, runs }) {
        const map = { n: Math.max(0, Math.min(n, PAGES_MAX)), codes: new Uint32Array(0) };
        map.codes = new Uint32Array(map.n).fill(ABSENT); // until a run tells more
        map.codes.set((this.maps.get(device)?.codes ?? []).slice(0, map.n));
        this.maps.set(device, map);
        fill(map, runs);
    }

    /** With another `n` than before the map has another size. */
    pagesSet({ device, n, runs }) {
        const map = this.maps.get(device);
        if (n !== undefined && n !== map?.n) {
            this.pagesNew({ device, n, runs });
            this.tell("map", device);
        } else if (map) {
            fill(map, runs);
            this.tell("pages", device, runs);
        }
    }

    modelName(id) {
        return this.models.get(id)?.name ?? "a model that left";
    }

    tenantName(id) {
        if (id === null || id === undefined) return null;
        const left = this.tenantsAll() > this.tenants.size ? "another tenant" : "a tenant that left";
        return this.tenants.get(id)?.name ?? left;
    }

    /** The daemon sends rows of the first 512 tenants. */
    tenantsAll() {
        return this.daemon.tenants ?? this.tenants.size;
    }
}

function fill(map, runs) {
    for (let i = 0; i + 2 < runs.length; i += 3) {
        map.codes.fill(runs[i + 2], runs[i], Math.min(runs[i] + runs[i + 1], map.n));
    }
}

export const useOf = (code) => code & 15;
/** The model's id, or -1 for pages without an owner. */
export const ownerOf = (code) => (code >>> 4) - 1;
