// emul_watch.h - who touched which byte when: races in shared and global memory, for emul.cc.
//
// Inside a block, time is counted per warp: a warp's epoch grows at each barrier of its lanes, and
// each warp knows up to which epoch of every other warp it comes after it (a vector clock).
// Shuffles, votes, ldmatrix and mma meet too, but a GPU does not order memory by them, so neither
// does the clock.  A byte remembers who wrote and read it last as a slot:
//
//     [31..11] epoch   [10..6] warp   [5] writer: by an atomic; reader: several lanes   [4..0] lane
//
// An access races with a slot when it is another thread's and the accessing warp does not know its
// epoch: one of them writes, and no barrier is between them.  Epochs grow from block to block, so
// slots of earlier blocks are always known and shared memory's slots need no clearing.  Shared
// bytes keep two readers (of different warps), global bytes one: a write that races with many
// readers always meets one of them.
//
// Between blocks nothing is ordered, except: what a block wrote before its fence() is published
// when it then does an atomic on some address (a channel), to those that do an atomic there later
// and then fence().  Global bytes remember the block and its fence count; a byte written by one
// block and read or written by another that has not acquired it is a conflict, in whatever order
// the blocks ran.
//
// Limits: fences count for the block, not the thread; one reader is kept per global byte besides
// "and others"; slots of global memory stop at PAGES_MAX touched pages per launch (reads and writes
// there are checked no more).
//
// Thread: the launching host thread, under emul.cc's mutex.
#ifndef INFERD_EMUL_WATCH_H
#define INFERD_EMUL_WATCH_H

#include <stdint.h>
#include <string.h>
#include <memory>
#include <unordered_map>
#include <vector>

namespace watch {

constexpr uint32_t WARPS_MAX = 32, PAGE = 4096, PAGES_MAX = 16384;
constexpr uint32_t EPOCH_SHIFT = 11, EPOCH_MAX = (1u << 21) - 1, FLAG = 1u << 5;
constexpr uint32_t TAG_BITS = 12, TAG_MAX = (1u << TAG_BITS) - 1; // fences of a block, in `writer`
constexpr uint32_t OTHERS = 1u << 31;                             // in `reader`: and other blocks

enum access : uint32_t { READ = 0, WRITE = 1, ATOMIC = 3 };

// What a race was with; `who` is a slot's thread, block -1 when it is the same block.
struct conflict {
    bool found, other_wrote, same_block, many;
    uint32_t thread;
    uint32_t block;
    uintptr_t at;
};

struct page {
    uintptr_t number;
    uint64_t launch; // of what the arrays say
    bool read_ok, write_ok;
    std::unique_ptr<uint32_t[]> reader, reader_slot, writer,
        writer_slot; // [PAGE], made when needed
    bool has_before;
    uint64_t before[PAGE / 64]; // bytes that the previous launch wrote
};

struct publication;
struct channel {
    std::vector<publication> list; // in the order of the atomics
    std::unordered_map<uint32_t, std::vector<uint32_t>> by_block;
    std::vector<uint32_t> with_more; // indexes in list whose `more` is not empty
};
struct prefix { // the first n publications of a channel
    channel *c;
    uint32_t n;
};
struct publication {
    uint32_t block, limit;    // writes of `block` with a tag below limit
    std::vector<prefix> more; // what that block had acquired elsewhere
};

// ---- time inside a block ----
struct {
    uint32_t n_warps, top;                // top: no epoch so far is above
    uint32_t known[WARPS_MAX][WARPS_MAX]; // [w][w] is w's own epoch
} clock;

inline bool clock_spent() {
    return clock.top >= EPOCH_MAX;
}
inline void clock_tick(uint32_t warp) {
    if (++clock.known[warp][warp] > clock.top) clock.top = clock.known[warp][warp];
}
// The warps of `mask` meet: each ends an epoch, and all know what any of them knew.
inline void clock_join(uint32_t mask) {
    uint32_t joined[WARPS_MAX] = {0};
    for (uint32_t w = 0; w < clock.n_warps; w++) {
        if (!(mask >> w & 1)) continue;
        clock_tick(w);
        for (uint32_t v = 0; v < WARPS_MAX; v++)
            joined[v] = clock.known[w][v] > joined[v] ? clock.known[w][v] : joined[v];
    }
    for (uint32_t w = 0; w < clock.n_warps; w++)
        if (mask >> w & 1) memcpy(clock.known[w], joined, sizeof joined);
}

inline uint32_t slot_of(uint32_t thread) {
    uint32_t warp = thread >> 5;
    return clock.known[warp][warp] << EPOCH_SHIFT | warp << 6 | (thread & 31);
}
inline uint32_t slot_warp(uint32_t slot) {
    return slot >> 6 & 31;
}
inline uint32_t slot_thread(uint32_t slot) {
    return slot_warp(slot) * 32 + (slot & 31);
}
inline bool same_thread(uint32_t a, uint32_t b) {
    return ((a ^ b) & ((1u << EPOCH_SHIFT) - 1) & ~FLAG) == 0;
}
// Is what `slot` says before what thread `me` does now?
inline bool is_before(uint32_t slot, uint32_t me) {
    return clock.known[slot_warp(me)][slot_warp(slot)] > slot >> EPOCH_SHIFT;
}
inline bool write_races(uint32_t slot, uint32_t me, bool atomic) {
    return slot != 0 && !same_thread(slot, me) && !(atomic && (slot & FLAG)) &&
           !is_before(slot, me);
}
inline bool read_races(uint32_t slot, uint32_t me) {
    if (slot == 0 || is_before(slot, me)) return false;
    return (slot & FLAG) || !same_thread(slot, me);
}
// The reader slot after `me` read too: lanes of one warp and epoch become "several".
inline uint32_t reader_merged(uint32_t slot, uint32_t me) {
    if ((slot >> 6) != (me >> 6)) return me;
    return same_thread(slot, me) ? slot : me | FLAG;
}

// ---- shared memory ----
struct {
    std::vector<uint32_t> writer, reader, reader2; // [bytes]
    std::vector<uint16_t> copying; // [bytes / 16] thread + 1 of a cp.async on its way
} arena;

inline conflict in_block(uint32_t slot, bool other_wrote, uintptr_t at) {
    return {true, other_wrote, true, !other_wrote && (slot & FLAG) != 0, slot_thread(slot), 0, at};
}

// Most accesses find the same in all their bytes: then one answer does.
inline bool uniform(const uint32_t *cells, uint32_t n) {
    uint32_t differ = 0;
    for (uint32_t i = 1; i < n; i++) differ |= cells[i] ^ cells[0];
    return differ == 0;
}
inline void fill(uint32_t *cells, uint32_t value, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) cells[i] = value;
}

// Byte `at`, and the n - 1 after it, about which the same is known.
inline conflict shared_bytes_access(uint32_t at, uint32_t n, access kind, uint32_t me) {
    uint32_t w = arena.writer[at], r = arena.reader[at], r2 = arena.reader2[at];
    if (write_races(w, me, kind == ATOMIC)) return in_block(w, true, at);
    if (kind == READ) {
        if (r == me) return {};
        uint32_t merged = reader_merged(r, me);
        if (slot_warp(r) != slot_warp(me)) {
            merged = slot_warp(r2) == slot_warp(me) ? reader_merged(r2, me) : me;
            fill(&arena.reader2[at], r, n);
        }
        fill(&arena.reader[at], merged, n);
        return {};
    }
    if (read_races(r, me)) return in_block(r, false, at);
    if (read_races(r2, me)) return in_block(r2, false, at);
    fill(&arena.writer[at], me | (kind == ATOMIC ? FLAG : 0), n);
    fill(&arena.reader[at], 0, n);
    fill(&arena.reader2[at], 0, n);
    return {};
}

inline conflict shared_access(uint32_t at, uint32_t n, access kind, uint32_t thread) {
    uint32_t me = slot_of(thread);
    if (uniform(&arena.writer[at], n) && uniform(&arena.reader[at], n) &&
        uniform(&arena.reader2[at], n))
        return shared_bytes_access(at, n, kind, me);
    conflict c = {};
    for (uint32_t i = at; i < at + n && !c.found; i++) c = shared_bytes_access(i, 1, kind, me);
    return c;
}

// ---- global memory ----
struct {
    uint64_t number; // of the launch, from 2: page.launch 0 is never the one before
    std::unordered_map<uintptr_t, page *> pages;
    std::vector<std::unique_ptr<page>> owned;
    page *recent[256];
    uint32_t n_tracked; // pages with arrays in this launch
    std::unordered_map<uintptr_t, std::unique_ptr<channel>> channels;
} launch = {1, {}, {}, {}, 0, {}};

struct {
    uint32_t idx;           // of the block in its grid
    uint32_t tag;           // of its writes: fences after writes so far
    uint32_t fenced;        // writes with a tag below this one have been fenced
    bool wrote, has_fenced; // wrote: since the last fence
    std::vector<prefix> pending, acquired;
    uint32_t memo_owner, memo_tag; // is_acquired said yes last
    bool memo;
} block;

inline void launch_begin() {
    launch.number++;
    launch.n_tracked = 0;
    launch.channels.clear();
    if (launch.pages.size() > PAGES_MAX) {
        launch.pages.clear();
        launch.owned.clear();
        memset(launch.recent, 0, sizeof launch.recent);
    }
}

inline void block_begin(uint32_t idx, uint32_t n_warps, uint32_t shared_bytes) {
    block.idx = idx;
    block.tag = block.fenced = 0;
    block.wrote = block.has_fenced = block.memo = false;
    block.pending.clear();
    block.acquired.clear();
    if (arena.writer.size() < shared_bytes) {
        arena.writer.resize(shared_bytes);
        arena.reader.resize(shared_bytes);
        arena.reader2.resize(shared_bytes);
        arena.copying.resize((shared_bytes + 15) / 16);
    }
    std::fill(arena.copying.begin(), arena.copying.end(), 0);
    clock.n_warps = n_warps;
    if (clock.top > EPOCH_MAX / 2) { // begin anew: what the slots say would look like the future
        clock.top = 0;
        std::fill(arena.writer.begin(), arena.writer.end(), 0);
        std::fill(arena.reader.begin(), arena.reader.end(), 0);
        std::fill(arena.reader2.begin(), arena.reader2.end(), 0);
    }
    clock.top++;
    for (uint32_t w = 0; w < n_warps; w++)
        for (uint32_t v = 0; v < WARPS_MAX; v++)
            clock.known[w][v] = clock.top; // of earlier blocks too
}

inline void page_renew(page *g) {
    g->has_before = g->launch + 1 == launch.number && g->writer != nullptr;
    if (g->has_before) {
        memset(g->before, 0, sizeof g->before);
        for (uint32_t i = 0; i < PAGE; i++)
            if (g->writer[i] != 0) g->before[i / 64] |= 1ull << (i % 64);
    }
    if (g->reader) memset(g->reader.get(), 0, PAGE * 4);
    if (g->writer) memset(g->writer.get(), 0, PAGE * 4);
    if (g->reader || g->writer) launch.n_tracked++;
    g->read_ok = g->write_ok = false;
    g->launch = launch.number;
}

inline page *page_of(uintptr_t address) {
    uintptr_t number = address / PAGE;
    page **recent = &launch.recent[number % 256];
    page *g = *recent;
    if (g == nullptr || g->number != number) {
        page *&known = launch.pages[number];
        if (known == nullptr) {
            launch.owned.emplace_back(new page());
            known = launch.owned.back().get();
            known->number = number;
        }
        g = *recent = known;
    }
    if (g->launch != launch.number) page_renew(g);
    return g;
}

// Did the launch before write any of these bytes (of one page)?
inline bool written_before(const page *g, uint32_t at, uint32_t n) {
    for (uint32_t i = at; g->has_before && i < at + n; i++)
        if (g->before[i / 64] >> (i % 64) & 1) return true;
    return false;
}

// Was this write published to this block?  Follows what the publishers had acquired themselves.
inline bool is_acquired(uint32_t by_block, uint32_t tag, bool any_tag) {
    if (block.memo && block.memo_owner == by_block && (any_tag || tag <= block.memo_tag))
        return true;
    std::vector<prefix> open = block.acquired;
    std::unordered_map<channel *, uint32_t> seen;
    while (!open.empty()) {
        prefix p = open.back();
        open.pop_back();
        uint32_t &n_seen = seen[p.c];
        if (p.n <= n_seen) continue;
        auto found = p.c->by_block.find(by_block);
        if (found != p.c->by_block.end())
            for (uint32_t i : found->second)
                if (i < p.n && (any_tag || tag < p.c->list[i].limit)) {
                    block.memo = true;
                    block.memo_owner = by_block;
                    block.memo_tag = any_tag ? 0 : tag; // what has a smaller tag was fenced too
                    return true;
                }
        for (uint32_t i : p.c->with_more)
            if (i < p.n && i >= n_seen)
                open.insert(open.end(), p.c->list[i].more.begin(), p.c->list[i].more.end());
        n_seen = p.n;
    }
    return false;
}

inline void fence() {
    if (block.wrote && block.fenced <= TAG_MAX) block.fenced++;
    block.tag = block.fenced < TAG_MAX ? block.fenced : TAG_MAX;
    block.wrote = false;
    block.has_fenced = true;
    for (const prefix &p : block.pending) {
        bool known = false;
        for (prefix &a : block.acquired)
            if (a.c == p.c) known = true, a.n = p.n > a.n ? p.n : a.n;
        if (!known) block.acquired.push_back(p);
    }
    block.pending.clear();
}

inline void atomic_on(const void *address) {
    std::unique_ptr<channel> &c = launch.channels[(uintptr_t)address];
    if (!c) c.reset(new channel());
    if (!c->list.empty()) block.pending.push_back({c.get(), (uint32_t)c->list.size()});
    if (!block.has_fenced) return;
    publication p = {block.idx, block.fenced, {}};
    for (const prefix &a : block.acquired)
        if (a.c != c.get()) p.more.push_back(a);
    uint32_t idx = (uint32_t)c->list.size();
    if (!p.more.empty()) c->with_more.push_back(idx);
    c->by_block[block.idx].push_back(idx);
    c->list.push_back(std::move(p));
}

inline conflict with_block(uint32_t owner, bool other_wrote, uintptr_t at) {
    return {true, other_wrote, false, false, 0, owner - 1, at};
}

// Byte `at` of the page, and the n - 1 after it, about which the same is known.
inline conflict global_bytes_access(page *g, uint32_t at, uint32_t n, access kind, uint32_t me) {
    uint32_t mine = block.idx + 1;
    uintptr_t address = g->number * PAGE + at;
    uint32_t w = g->writer ? g->writer[at] : 0, r = g->reader ? g->reader[at] : 0;
    if (w >> TAG_BITS == mine) {
        if (write_races(g->writer_slot[at], me, kind == ATOMIC))
            return in_block(g->writer_slot[at], true, address);
    } else if (w != 0 && !(kind == ATOMIC && (g->writer_slot[at] & FLAG)) &&
               !is_acquired((w >> TAG_BITS) - 1, w & TAG_MAX, false)) {
        return with_block(w >> TAG_BITS, true, address);
    }
    uint32_t owner = r & ~OTHERS;
    if (kind == READ) {
        fill(&g->reader_slot[at], owner == mine ? reader_merged(g->reader_slot[at], me) : me, n);
        if (owner != mine) fill(&g->reader[at], mine | (r != 0 ? OTHERS : 0), n);
        return {};
    }
    if (owner == mine) {
        if (read_races(g->reader_slot[at], me)) return in_block(g->reader_slot[at], false, address);
        if ((r & OTHERS) && block.acquired.empty()) return with_block(0, false, address);
    } else if (owner != 0 && !is_acquired(owner - 1, 0, true)) {
        return with_block(owner, false, address);
    }
    fill(&g->writer[at], mine << TAG_BITS | block.tag, n);
    fill(&g->writer_slot[at], me | (kind == ATOMIC ? FLAG : 0), n);
    if (r != 0) fill(&g->reader[at], 0, n);
    return {};
}

// [at, at + n) of one page.
inline conflict global_access(page *g, uint32_t at, uint32_t n, access kind, uint32_t thread) {
    uint32_t me = slot_of(thread);
    if (!(kind == READ ? g->reader : g->writer)) {
        if (!g->reader && !g->writer && ++launch.n_tracked > PAGES_MAX) return {};
        std::unique_ptr<uint32_t[]> &owner = kind == READ ? g->reader : g->writer;
        std::unique_ptr<uint32_t[]> &slot = kind == READ ? g->reader_slot : g->writer_slot;
        owner.reset(new uint32_t[PAGE]());
        slot.reset(new uint32_t[PAGE]());
    }
    if (kind != READ) block.wrote = true;
    if ((!g->writer || (uniform(&g->writer[at], n) && uniform(&g->writer_slot[at], n))) &&
        (!g->reader || (uniform(&g->reader[at], n) && uniform(&g->reader_slot[at], n))))
        return global_bytes_access(g, at, n, kind, me);
    conflict c = {};
    for (uint32_t i = at; i < at + n && !c.found; i++) c = global_bytes_access(g, i, 1, kind, me);
    return c;
}

// Did this launch write any of these bytes?
inline bool written_now(const page *g, uint32_t at, uint32_t n) {
    for (uint32_t i = at; g->writer && i < at + n; i++)
        if (g->writer[i] != 0) return true;
    return false;
}

} // namespace watch

#endif
