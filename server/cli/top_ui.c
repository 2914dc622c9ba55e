/* top_ui.c - see top_ui.h. */
#include "top_ui.h"

#include <string.h>

#include "ctl_client.h"
#include "ctl_json.h"
#include "ctl_show.h"
#include "json_out.h"
#include "top_detail.h"

typedef unsigned long long ull;

static const char keys_browse[] =
    "q quit  ? help  s sort  l load  u unload  d drain  p pin  P plan  t tenants";
static const char keys_asks_plan[] = "y yes  n no  P the plan";
static const char yes_or_no[] = "y/n";
static const char help_text[] =
    "KEYS\n"
    "up, down, j, k, PgUp, PgDn, Home, End: select a model, or scroll a long plan\n"
    "Enter: all of the selected model\n"
    "s, or 1 to 7: sort by name, state, class, memory, used, tokens/s, last use\n"
    "S, or the same number again: reverse\n"
    "l load   u unload   d drain   D end a drain and load   p pin or unpin\n"
    "P plan: what a load would evict   t tenants or events   q quit\n"
    "Esc: close this, or give an answer up\n"
    "\n"
    "USED%: part of the time of one device in the last 10 s\n"
    "OF%, ENT%: the part that a share guarantees or allows\n"
    "LAST: time since the last use.  rows of a step: of prompts + of decoding\n"
    "tokens/s: of the last 10 s.  TTFT, ITL: of the newest second that has some\n";

void top_ui_init(top_ui *ui) {
    *ui = (top_ui){.view = {.sort = TOP_BY_STATE}};
}

static void forget_name(top_ui *ui) {
    free(ui->name);
    ui->name = NULL;
}

static void forget_plan(top_ui *ui) {
    json_decref(ui->plan);
    ui->plan = NULL;
}

void top_ui_deinit(top_ui *ui) {
    forget_name(ui);
    forget_plan(ui);
    buf_deinit(&ui->note);
    buf_deinit(&ui->panel);
}

void top_request_deinit(top_request *rq) {
    buf_deinit(&rq->path);
    buf_deinit(&rq->body);
    *rq = (top_request){0};
}

/* ---- commands ---- */

/* The command's name in sentences, in the path, and its body. */
typedef struct command_row {
    const char *verb, *path, *body;
    bool plan; // ask for a plan before
} command_row;

static const command_row commands[TOP_COMMANDS] = {
    [TOP_LOAD] = {"load", "load", "{}", true},
    [TOP_UNLOAD] = {"unload", "unload", "{}", false},
    [TOP_DRAIN] = {"drain", "drain", "{}", false},
    [TOP_UNDRAIN] = {"undrain", "undrain", "{}", true},
    [TOP_PIN_HOT] = {"pin hot", "pin", "{\"level\":\"hot\"}", true},
    [TOP_PIN_WARM] = {"pin warm", "pin", "{\"level\":\"warm\"}", false},
    [TOP_UNPIN] = {"unpin", "unpin", "{}", false},
    [TOP_PLAN] = {"plan", NULL, NULL, true}};

static void say(top_ui *ui, bool bad, const char *text) {
    buf_clear(&ui->note);
    ui->bad = bad;
    buf_add_str(&ui->note, text);
}

/* "load code: " */
static void begin_note(top_ui *ui) {
    buf_clear(&ui->note);
    ui->bad = false;
    buf_add_format(&ui->note, "%s %s: ", commands[ui->command].verb, ui->name);
}

static void add_work(buf *out, const json_t *m) {
    ull running = ctl_count(m, "running"), waiting = ctl_count(m, "waiting");
    if (running + waiting == 0)
        buf_add_str(out, "it has no requests; ");
    else
        buf_add_format(out, "%llu running and %llu waiting requests end first; ", running, waiting);
}

/* What a command without a plan does. */
static void add_effect(top_ui *ui, const json_t *m) {
    switch (ui->command) {
    case TOP_UNLOAD:
        add_work(&ui->note, m);
        buf_add_str(&ui->note, "then it leaves the device, and a later request brings it back.");
        break;
    case TOP_DRAIN:
        add_work(&ui->note, m);
        buf_add_str(&ui->note, "new ones are refused with 503 until a load or undrain, and it "
                               "leaves the device.");
        break;
    case TOP_PIN_WARM:
        buf_add_str(&ui->note, "its weights are kept in host memory.");
        break;
    default:
        buf_add_str(&ui->note, "it may be evicted again.");
        break;
    }
}

static void send_plan(top_ui *ui, top_request *rq) {
    buf_add_str(&rq->path, "/admin/plan");
    buf_add_str(&rq->body, "{\"load\":");
    json_add_string(&rq->body, ui->name, strlen(ui->name));
    buf_add_char(&rq->body, '}');
    begin_note(ui);
    buf_add_str(&ui->note, "asking for its plan ...");
    ui->mode = TOP_PLANS;
}

static void send_command(top_ui *ui, top_request *rq) {
    buf_add_str(&rq->path, "/admin/models/");
    ctl_add_segment(&rq->path, ui->name);
    buf_add_format(&rq->path, "/%s", commands[ui->command].path);
    buf_add_str(&rq->body, commands[ui->command].body);
    begin_note(ui);
    buf_add_str(&ui->note, "sent ...");
    ui->mode = TOP_SENDS;
}

/* Takes the selected model as that of the command. */
static const json_t *take_model(top_ui *ui, const top_state *s) {
    const json_t *m = top_view_selected(&ui->view, s);
    forget_name(ui);
    ui->name = m == NULL ? NULL : strdup(ctl_text(m, "name"));
    if (ui->name == NULL) say(ui, true, "no model is selected");
    return ui->name == NULL ? NULL : m;
}

static void begin(top_ui *ui, const json_t *m, top_command command, top_request *rq) {
    ui->command = command;
    if (commands[command].plan) {
        send_plan(ui, rq);
        return;
    }
    begin_note(ui);
    add_effect(ui, m);
    ui->mode = TOP_ASKS;
}

/* ---- answers ---- */

static size_t count_victims(const json_t *plan) {
    return json_array_size(json_object_get(plan, "victims"));
}

/* Names `n_named` of the victims. */
static void add_victims(buf *out, const json_t *plan, size_t n_named) {
    const json_t *victims = json_object_get(plan, "victims");
    size_t n = count_victims(plan);
    buf_add_str(out, n == 0 ? "evicts no model" : "evicts ");
    if (n > 1) buf_add_format(out, "%zu models%s", n, n_named > 0 ? ": " : "");
    for (size_t i = 0; i < n_named; i++) {
        const json_t *v = json_array_get(victims, i);
        buf_add_format(out, "%s%s (",
                       i == 0      ? ""
                       : i + 1 < n ? ", "
                                   : " and ",
                       ctl_text(v, "name"));
        show_add_size(out, ctl_count(v, "bytes"));
        const char *device = show_device_of(plan, v);
        if (device[0] != 0) buf_add_format(out, " on %s", device);
        buf_add_str(out, ", idle ");
        show_add_seconds(out, ctl_number(v, "idle_s"));
        buf_add_char(out, ')');
    }
    if (n_named == 0 && n > 0)
        buf_add_str(out, n > 1 ? " (P shows them)" : "a model (P shows it)");
    else if (n_named < n)
        buf_add_format(out, " and %zu more (P shows them)", n - n_named);
}

/* Why a plan does not fit: its problems, or the checks that it does not keep. */
static void add_misfit(buf *out, const json_t *plan) {
    const json_t *problems = json_object_get(plan, "problems");
    const json_t *checks = json_object_get(plan, "checks");
    buf_add_str(out, "does not fit");
    for (size_t i = 0; i < json_array_size(problems); i++) {
        const char *text = json_string_value(json_array_get(problems, i));
        if (text != NULL) buf_add_format(out, "; %s", text);
    }
    for (size_t i = 0; i < json_array_size(checks); i++) {
        const json_t *c = json_array_get(checks, i);
        if (json_is_false(json_object_get(c, "kept")))
            buf_add_format(out, "; %s", ctl_text(c, "text"));
    }
    buf_add_char(out, '.');
}

/* "evicts night (96 MiB, idle 40 s), about 0.4 s." */
static void add_plan(buf *out, const json_t *plan, size_t n_named) {
    if (!ctl_is(plan, "fits")) {
        add_misfit(out, plan);
        return;
    }
    if (strcmp(ctl_text(plan, "bring_up.from"), "device") == 0) {
        buf_add_str(out, "it is on the device.");
        return;
    }
    bool turns = ctl_is(plan, "turns"), any = count_victims(plan) > 0;
    if (any || !turns) add_victims(out, plan, n_named);
    if (!turns && json_is_number(ctl_member(plan, "bring_up.s"))) {
        buf_add_str(out, ", about ");
        show_add_seconds(out, ctl_number(plan, "bring_up.s"));
    }
    if (turns)
        buf_add_format(
            out, "%s models of its class that are at work in turns, when requests for it come",
            any ? "; then" : "evicts");
    else if (json_is_false(json_object_get(plan, "now")))
        buf_add_str(out, ", waits until there is room");
    buf_add_char(out, '.');
}

static void add_problem(buf *out, int status, const json_t *body, const char *why) {
    buf text = {0};
    if (status > 0 && json_is_object(ctl_member(body, "error"))) {
        show_error(&text, body);
        const char *p = buf_cstr(&text);
        size_t skip = strncmp(p, "inferd: ", 8) == 0 ? 8 : 0;
        for (size_t i = skip; i < text.n; i++)
            if (p[i] != '\n')
                buf_add_char(out, p[i]);
            else if (i + 1 < text.n)
                buf_add_str(out, "; ");
    } else if (status > 0) {
        buf_add_format(out, "the answer has status %d", status);
    } else {
        buf_add_str(out, why == NULL ? "no answer" : why);
    }
    buf_deinit(&text);
}

static void close_panel(top_ui *ui) {
    buf_clear(&ui->panel);
    ui->help = ui->detail = false;
    ui->view.panel_first = 0;
}

static void show_the_plan(top_ui *ui, const json_t *plan) {
    close_panel(ui);
    buf_add_format(&ui->panel, "PLAN OF %s\n", ui->name);
    add_plan(&ui->panel, plan, count_victims(plan));
    buf_add_char(&ui->panel, '\n');
    show_plan(&ui->panel, plan);
    say(ui, false, "");
}

/* The question that a plan precedes: it names as many victims as have room, all if it can. */
static void write_question(top_ui *ui) {
    size_t n = count_victims(ui->plan);
    do {
        begin_note(ui);
        add_plan(&ui->note, ui->plan, n);
        if (ui->command == TOP_PIN_HOT) buf_add_str(&ui->note, "  It then stays on the device.");
    } while (!top_view_note_fits(&ui->view, buf_cstr(&ui->note), yes_or_no) && n-- > 0);
}

void top_ui_answer(top_ui *ui, int status, const json_t *body, const char *why) {
    bool fine = status >= 200 && status < 300;
    top_mode mode = ui->mode;
    ui->mode = TOP_BROWSES;
    if (mode != TOP_PLANS && mode != TOP_SENDS) return;
    begin_note(ui);
    if (mode == TOP_PLANS && ui->command == TOP_PLAN && fine) {
        show_the_plan(ui, body);
    } else if (mode == TOP_PLANS && ui->command != TOP_PLAN && status > 0) {
        forget_plan(ui);
        ui->plan = fine ? json_deep_copy(body) : NULL;
        if (ui->plan == NULL) {
            buf_add_str(&ui->note, "no plan: ");
            add_problem(&ui->note, status, body, fine ? "no memory" : why);
        }
        ui->mode = TOP_ASKS;
    } else if (fine) {
        buf_add_format(&ui->note, "accepted; its state is %s", ctl_text(body, "state"));
    } else {
        ui->bad = true;
        if (status > 0) buf_add_str(&ui->note, "refused: ");
        add_problem(&ui->note, status, body, why);
    }
}

/* ---- keys ---- */

static void sort_by(top_ui *ui, top_sort sort) {
    buf text = {0};
    ui->view.reverse = ui->view.sort == sort ? !ui->view.reverse : false;
    ui->view.sort = sort;
    buf_add_format(&text, "sorted by %s%s", top_sort_name(sort),
                   ui->view.reverse ? ", reversed" : "");
    say(ui, false, buf_cstr(&text));
    buf_deinit(&text);
}

/* Lines or models that a key moves by; 0: another key. */
static int32_t steps(int key, uint32_t n_shown) {
    int32_t page = (int32_t)u32_max(n_shown, 2) - 1;
    return key == TOP_KEY_UP || key == 'k'     ? -1
           : key == TOP_KEY_DOWN || key == 'j' ? 1
           : key == TOP_KEY_PAGE_UP            ? -page
           : key == TOP_KEY_PAGE_DOWN          ? page
           : key == TOP_KEY_HOME               ? INT32_MIN
           : key == TOP_KEY_END                ? INT32_MAX
                                               : 0;
}

/* A plan or the help that has not all its lines on the screen. */
static bool scroll(top_ui *ui, int key) {
    int32_t n = ui->panel.n > 0 && !ui->detail ? steps(key, ui->view.panel_shown) : 0;
    return n != 0 && top_view_scroll_panel(&ui->view, n);
}

static bool move(top_ui *ui, const top_state *s, int key) {
    int32_t n = steps(key, ui->view.n_shown);
    if (n != 0) top_view_move(&ui->view, s, n);
    return n != 0;
}

static void toggle_help(top_ui *ui) {
    bool opens = !ui->help;
    close_panel(ui);
    ui->help = opens;
    if (opens) buf_add_str(&ui->panel, help_text);
}

static void toggle_detail(top_ui *ui) {
    bool opens = !ui->detail;
    close_panel(ui);
    ui->detail = opens;
}

/* Keys that need no request; false: another one. */
static bool look(top_ui *ui, const top_state *s, int key) {
    top_view *v = &ui->view;
    if (scroll(ui, key) || move(ui, s, key)) return true;
    if (key >= '1' && key < '1' + TOP_SORTS) {
        sort_by(ui, (top_sort)(key - '1'));
        return true;
    }
    switch (key) {
    case 's':
        v->reverse = false;
        sort_by(ui, (top_sort)((v->sort + 1) % TOP_SORTS));
        return true;
    case 'S':
        sort_by(ui, v->sort);
        return true;
    case 't':
        if (ui->panel.n == 0) v->tenants = !v->tenants;
        close_panel(ui);
        return true;
    case '?':
        toggle_help(ui);
        return true;
    case '\r':
    case '\n':
        toggle_detail(ui);
        return true;
    case TOP_KEY_ESCAPE:
        close_panel(ui);
        say(ui, false, "");
        return true;
    case 'q':
        ui->quit = true;
        return true;
    default:
        return false;
    }
}

static void act(top_ui *ui, const top_state *s, int key, top_request *rq) {
    static const struct {
        char key;
        top_command command;
    } keys[] = {
        {'l', TOP_LOAD}, {'u', TOP_UNLOAD}, {'d', TOP_DRAIN}, {'D', TOP_UNDRAIN}, {'P', TOP_PLAN}};
    bool waits = ui->mode == TOP_PLANS || ui->mode == TOP_SENDS, is_pin = key == 'p';
    for (size_t i = 0; i < INFERD_COUNT(keys) || is_pin; i++) {
        if (!is_pin && keys[i].key != key) continue;
        if (waits) {
            say(ui, true, "an answer is awaited; Esc gives it up");
            return;
        }
        const json_t *m = take_model(ui, s);
        if (m == NULL) return;
        if (!is_pin) {
            begin(ui, m, keys[i].command, rq);
            return;
        }
        buf_clear(&ui->note);
        ui->bad = false;
        buf_add_format(&ui->note,
                       "pin %s, which is pinned %s: h hot (it stays on the device), w warm (in "
                       "host memory), u unpin",
                       ui->name, ctl_text(m, "pin"));
        ui->mode = TOP_PINS;
        return;
    }
}

static void choose_pin(top_ui *ui, int key, top_request *rq) {
    static const char letters[] = "hwu";
    static const top_command pins[] = {TOP_PIN_HOT, TOP_PIN_WARM, TOP_UNPIN};
    const char *at = key > 0 && key < 128 ? strchr(letters, key) : NULL;
    ui->mode = TOP_BROWSES;
    if (at == NULL)
        say(ui, false, "not pinned");
    else
        begin(ui, NULL, pins[at - letters], rq);
}

void top_ui_key(top_ui *ui, const top_state *s, int key, top_request *rq) {
    bool waits = ui->mode == TOP_PLANS || ui->mode == TOP_SENDS;
    if (ui->mode == TOP_PINS) {
        choose_pin(ui, key, rq);
    } else if (ui->mode == TOP_ASKS && key == 'P' && ui->plan != NULL) {
        show_the_plan(ui, ui->plan);
    } else if (ui->mode == TOP_ASKS && scroll(ui, key)) {
        return;
    } else if (ui->mode == TOP_ASKS) {
        ui->mode = TOP_BROWSES;
        if (ui->plan != NULL && !ui->help && !ui->detail) close_panel(ui); // that of the question
        forget_plan(ui);
        if (key == 'y' || key == 'Y')
            send_command(ui, rq);
        else
            say(ui, false, "nothing was sent");
    } else if (waits && key == TOP_KEY_ESCAPE) {
        bool sent = ui->mode == TOP_SENDS;
        ui->mode = TOP_BROWSES;
        ui->gives_up = true;
        say(ui, false,
            sent ? "the answer is not awaited; the daemon may have the command"
                 : "nothing was sent");
    } else if (!look(ui, s, key)) {
        act(ui, s, key, rq);
    }
}

top_foot top_ui_foot(top_ui *ui, const top_state *s, const char *trouble) {
    static const char *const keys[] = {[TOP_BROWSES] = keys_browse,
                                       [TOP_PLANS] = "Esc give up  q quit",
                                       [TOP_PINS] =
                                           "h hot  w warm  u unpin  any other key: nothing",
                                       [TOP_ASKS] = "y yes  n no",
                                       [TOP_SENDS] = "Esc give up  q quit"};
    bool asks = ui->mode == TOP_ASKS;
    if (asks && ui->plan != NULL) write_question(ui);
    if (ui->detail) {
        buf_clear(&ui->panel);
        top_add_detail(&ui->panel, s, top_view_selected(&ui->view, s));
    }
    return (top_foot){.trouble = trouble,
                      .note = ui->note.n > 0 ? buf_cstr(&ui->note) : NULL,
                      .ask = asks ? yes_or_no : NULL,
                      .bad = ui->bad,
                      .keys = asks && ui->plan != NULL ? keys_asks_plan : keys[ui->mode],
                      .scrolls = !ui->detail,
                      .panel = ui->panel.n > 0 ? buf_cstr(&ui->panel) : NULL};
}
