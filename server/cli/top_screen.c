/* top_screen.c - see top_screen.h. */
#include "top_screen.h"

#include <curses.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "top_text.h"
#include "top_ui.h"

static SCREEN *screen; // NULL: not open
static attr_t attributes[TOP_MARKS];
static short pairs[TOP_MARKS];

/* ---- colours ---- */

typedef struct look {
    attr_t attribute; // with and without colours
    short color;      // -1: the terminal's own
} look;

static const look looks[TOP_MARKS] = {[TOP_NORMAL] = {A_NORMAL, -1},
                                      [TOP_STRONG] = {A_BOLD, -1},
                                      [TOP_WEAK] = {A_DIM, -1},
                                      [TOP_SELECTED] = {A_REVERSE, -1},
                                      [TOP_GOOD] = {A_NORMAL, COLOR_GREEN},
                                      [TOP_WARNING] = {A_NORMAL, COLOR_YELLOW},
                                      [TOP_BAD] = {A_BOLD, COLOR_RED},
                                      [TOP_WEIGHTS] = {A_BOLD, COLOR_BLUE},
                                      [TOP_KV] = {A_BOLD, COLOR_GREEN},
                                      [TOP_CACHED] = {A_NORMAL, COLOR_CYAN},
                                      [TOP_WARM] = {A_NORMAL, COLOR_YELLOW},
                                      [TOP_SWAPPED] = {A_NORMAL, COLOR_MAGENTA},
                                      [TOP_FREE] = {A_DIM, -1}};

static void choose_looks(void) {
    const char *no_color = getenv("NO_COLOR");
    bool colors = (no_color == NULL || no_color[0] == 0) && has_colors() && start_color() == OK &&
                  use_default_colors() == OK;
    for (short i = TOP_NORMAL; i < TOP_MARKS; i++) {
        attributes[i] = looks[i].attribute;
        pairs[i] = 0;
        if (colors && looks[i].color > 0 && init_pair(i, looks[i].color, -1) == OK) pairs[i] = i;
    }
}

/* ---- the terminal ---- */

bool top_screen_named(void) {
    const char *name = getenv("TERM");
    return name != NULL && name[0] != 0 && strcmp(name, "dumb") != 0;
}

bool top_screen_open(void) {
    if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO) || !top_screen_named()) return false;
    screen = newterm(NULL, stdout, stdin);
    if (screen == NULL) return false;
    if (tigetstr("cup") == NULL) {
        top_screen_close();
        return false;
    }
    choose_looks();
    cbreak();
    noecho();
    nonl();
    keypad(stdscr, TRUE);
    nodelay(stdscr, TRUE);
    set_escdelay(50);
    curs_set(0);
    return true;
}

void top_screen_close(void) {
    if (screen == NULL) return;
    curs_set(1);
    endwin();
    delscreen(screen);
    screen = NULL;
}

void top_screen_size(uint32_t *width, uint32_t *height) {
    int y, x;
    getmaxyx(stdscr, y, x);
    *width = x > 0 ? (uint32_t)x : 0;
    *height = y > 0 ? (uint32_t)y : 0;
}

static void draw_line(int y, const char *line, size_t n) {
    size_t begin = 0;
    move(y, 0);
    attr_set(A_NORMAL, 0, NULL);
    for (size_t i = 0; i <= n; i++) {
        bool mark = i < n && (unsigned char)line[i] < TOP_MARKS;
        if (i < n && !mark) continue;
        addnstr(line + begin, (int)(i - begin));
        if (mark) attr_set(attributes[(int)line[i]], pairs[(int)line[i]], NULL);
        begin = i + 1;
    }
    attr_set(A_NORMAL, 0, NULL);
}

void top_screen_draw(const buf *lines) {
    size_t begin = 0;
    int y = 0;
    erase();
    for (size_t i = 0; i < lines->n; i++) {
        if (lines->p[i] != '\n') continue;
        draw_line(y++, lines->p + begin, i - begin);
        begin = i + 1;
    }
    wnoutrefresh(stdscr);
    doupdate();
}

static bool keyboard_is_gone(void) {
    struct pollfd keyboard = {.fd = STDIN_FILENO, .events = POLLIN};
    if (poll(&keyboard, 1, 0) != 1) return false;
    return (keyboard.revents & (POLLHUP | POLLERR | POLLNVAL)) != 0;
}

int top_screen_key(void) {
    int key = getch();
    switch (key) {
    case ERR:
        return keyboard_is_gone() ? TOP_KEY_GONE : TOP_KEY_NONE;
    case KEY_RESIZE:
        return TOP_KEY_RESIZED;
    case KEY_UP:
        return TOP_KEY_UP;
    case KEY_DOWN:
        return TOP_KEY_DOWN;
    case KEY_PPAGE:
        return TOP_KEY_PAGE_UP;
    case KEY_NPAGE:
        return TOP_KEY_PAGE_DOWN;
    case KEY_HOME:
        return TOP_KEY_HOME;
    case KEY_END:
        return TOP_KEY_END;
    case KEY_ENTER:
        return '\n';
    default:
        return key;
    }
}
