// net.js - requests to the daemon, and the stream of its state.
//
// Every request is of the same origin, without cookies.  The key of an administrator and the key
// of a tenant are kept for the tab (sessionStorage), never in the address: `#key=KEY` is taken out
// of it at once.

const RETRY_S = [1, 2, 4, 5];
const SILENCE_MS = 15000; // the daemon sends a comment more often than that
const AGAIN = Symbol("the daemon ended a stream that it had served");
const LINE_MAX = 32 << 20; // a longer event is no event of this daemon

/** What a browser keeps; one that may keep nothing throws, and then it is kept until a reload. */
export function kept(storage) {
    const now = new Map();
    return {
        get(name) {
            try {
                return window[storage].getItem("inferd." + name) ?? now.get(name) ?? "";
            } catch {
                return now.get(name) ?? "";
            }
        },
        set(name, value) {
            now.set(name, value);
            try {
                window[storage].setItem("inferd." + name, value);
            } catch {
                // until a reload
            }
        },
    };
}

export const keys = kept("sessionStorage");

/** Takes `key=` out of the address; true: there was one. */
export function takeKeyFromAddress() {
    const found = /(^#|&)key=([^&]*)/.exec(location.hash);
    if (!found) return false;
    try {
        keys.set("admin_key", decodeURIComponent(found[2]));
    } catch {
        keys.set("admin_key", found[2]);
    }
    const rest = location.hash.replace(found[0], found[1] === "&" ? "" : "#").replace("#&", "#");
    history.replaceState(null, "", location.pathname + (rest === "#" ? "" : rest));
    return true;
}

/** @param {"admin_key"|"tenant_key"} which */
export function ask(path, which, { method = "GET", body, signal } = {}) {
    const headers = {};
    const key = keys.get(which);
    if (key) headers.Authorization = "Bearer " + key;
    if (body !== undefined) headers["Content-Type"] = "application/json";
    return fetch(path, {
        method, headers, signal, mode: "same-origin", credentials: "omit", cache: "no-store",
        redirect: "error", body: body === undefined ? undefined : JSON.stringify(body),
    });
}

/** The sentence of an error body, or one made of the status. */
export async function errorOf(response) {
    let text = "";
    try {
        text = (await response.json()).error.message;
    } catch {
        // no JSON: the status has to do
    }
    return text || "the daemon answered " + response.status;
}

/**
 * A command of an administrator.  Never throws.
 * @returns {Promise<{ok: boolean, status: number, body: ?Object, message: string}>}
 */
export async function command(path, body) {
    try {
        const response = await ask(path, "admin_key", { method: "POST", body });
        if (!response.ok) {
            const message = await errorOf(response);
            return { ok: false, status: response.status, body: null, message };
        }
        return { ok: true, status: response.status, body: await response.json(), message: "" };
    } catch {
        return { ok: false, status: 0, body: null, message: "the daemon did not answer" };
    }
}

/** Path of a command for a model; null for a name that a path cannot have. */
export function modelPath(name, what) {
    if (name === "." || name === ".." || name === "") return null;
    return "/admin/models/" + encodeURIComponent(name) + "/" + what;
}

/**
 * The events of a text/event-stream, one after the other.  `heard` is called for all bytes.
 * @param {ReadableStream} stream
 */
export async function* events(stream, heard = () => {}) {
    const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    let name = "message";
    let data = [];
    for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        heard();
        text += value;
        if (text.length > LINE_MAX) throw new Error("an event is too long");
        let from = 0;
        for (let end = text.indexOf("\n"); end >= 0; end = text.indexOf("\n", from)) {
            const line = text.slice(from, end).replace(/\r$/, "");
            from = end + 1;
            if (line === "") {
                if (data.length) yield { name, data: data.join("\n") };
                name = "message";
                data = [];
            } else if (line.startsWith("data:")) {
                data.push(line.slice(line[5] === " " ? 6 : 5));
            } else if (line.startsWith("event:")) {
                name = line.slice(6).trim();
            }
        }
        text = text.slice(from);
    }
}

/**
 * The stream of the daemon's state, opened again whenever it ends.
 *
 *     connecting -> live       the first event came
 *     live -> away             the stream failed, was silent for SILENCE_MS, or ended twice
 *     any -> key, refused      401, 403: a person has to do something
 *     key, refused -> connecting   retry()
 *
 * The daemon ends the streams of keys when its configuration changes, so a stream that it ended
 * after a delta is opened again at once, and only when that fails it is away.
 *
 * `told(state, detail)` is called when the state changes, `event(name, data)` for each event.
 * `detail` is the sentence of the daemon; `away` has none when the daemon did not answer.
 */
export class Watch {
    constructor(event, told) {
        this.event = event;
        this.told = told;
        this.state = "connecting";
        this.detail = "";
        this.tries = 0;
        this.heard = Date.now();
        this.timer = 0;
        this.abort = null;
    }

    set(state, detail = "") {
        this.state = state;
        this.detail = detail;
        this.told(state, detail);
    }

    /** Now, whatever the timer says. */
    retry() {
        clearTimeout(this.timer);
        this.abort?.abort();
        if (this.waitsForPerson()) this.set("connecting");
        this.run();
    }

    waitsForPerson() {
        return this.state === "key" || this.state === "refused";
    }

    later() {
        const s = RETRY_S[Math.min(this.tries++, RETRY_S.length - 1)];
        clearTimeout(this.timer);
        this.timer = setTimeout(() => this.run(), s * 1000);
    }

    async run() {
        const abort = new AbortController();
        this.abort = abort;
        const guard = setInterval(() => {
            if (Date.now() - this.lastByte > SILENCE_MS) abort.abort();
        }, 1000);
        this.lastByte = Date.now();
        let said = "";
        try {
            said = await this.read(abort);
        } catch {
            // no connection, a stream that broke, or bytes that are no event: the same for a viewer
        }
        clearInterval(guard);
        if (this.abort !== abort) return; // retry() began another one
        abort.abort();
        if (this.waitsForPerson()) return;
        if (said === AGAIN) {
            this.run();
            return;
        }
        this.set("away", said);
        this.later();
    }

    /** Until the end of a stream: AGAIN, "", or the sentence of a daemon that gave none. */
    async read(abort) {
        const response = await ask("/admin/watch", "admin_key", { signal: abort.signal });
        if (!response.ok) {
            const message = await errorOf(response);
            const state = { 401: "key", 403: "refused" }[response.status];
            if (state && this.abort === abort) this.set(state, message);
            return message;
        }
        const heard = () => {
            this.lastByte = Date.now();
            this.heard = this.lastByte;
        };
        let n = 0;
        for await (const { name, data } of events(response.body, heard)) {
            if (this.abort !== abort) return "";
            if (name !== "all" && name !== "delta") continue;
            const start = performance.now();
            try {
                this.event(name, JSON.parse(data), start);
            } catch (e) {
                console.error(e); // an event that this page does not understand
                throw e;
            }
            this.tries = 0;
            n++;
            if (this.state !== "live") this.set("live");
        }
        return n > 1 ? AGAIN : "";
    }
}
