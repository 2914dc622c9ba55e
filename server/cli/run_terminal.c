/* run_terminal.c - see run_terminal.h.
 *
 * libedit calls `read_character` for each one, so the wait for the keyboard is ours:
 *
 *     ppoll     until a byte or a signal comes; the signals are blocked elsewhere in this function,
 *               so that none is missed between the look at its flag and the wait
 *     SIGWINCH  libedit asks for the new size and draws again
 *     SIGTSTP   the terminal gets its own mode back before the process stops, and ours after it
 *     SIGINT    the caller has counted it: the line ends */
#include "run_terminal.h"

#include <errno.h>
#include <fcntl.h>
#include <histedit.h>
#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <wchar.h>

enum {
    CTRL_D = 4,
    PATH_BYTES = 1024,
    LOOK_EVERY_MS = 250
}; // a thread of a driver may have got the signal

struct run_terminal {
    EditLine *edit;   // owned
    History *history; // owned
    const char *prompt;
    const volatile sig_atomic_t *interrupts;
    sig_atomic_t interrupts_before; // when the line was begun
    bool interrupted;
    mbstate_t decoding;
    char path[PATH_BYTES]; // of the history; "": none
};

/* ---- signals ---- */

static volatile sig_atomic_t resized, stopping;

static void on_signal(int sig) {
    if (sig == SIGTSTP)
        stopping = 1;
    else
        resized = 1; // SIGCONT: the size may have changed meanwhile
}

static const int handled[] = {SIGWINCH, SIGTSTP, SIGCONT};
enum { N_HANDLED = sizeof handled / sizeof handled[0] };

static void take_signals(struct sigaction before[N_HANDLED]) {
    struct sigaction action = {.sa_handler = on_signal};
    for (int i = 0; i < N_HANDLED; i++) sigaction(handled[i], &action, &before[i]);
}

static void give_signals_back(const struct sigaction before[N_HANDLED]) {
    for (int i = 0; i < N_HANDLED; i++) sigaction(handled[i], &before[i], NULL);
}

/* The shell gets a terminal in its own mode. */
static void stop_process(run_terminal *t) {
    stopping = 0;
    el_set(t->edit, EL_PREP_TERM, 0);
    raise(SIGSTOP);
    el_set(t->edit, EL_PREP_TERM, 1);
    resized = 1;
}

static void draw_again(run_terminal *t) {
    resized = 0;
    el_resize(t->edit);
    el_set(t->edit, EL_REFRESH);
}

/* Waits for a byte.  False: the line was interrupted. */
static bool wait_for_byte(run_terminal *t) {
    sigset_t ours, before;
    struct pollfd keyboard = {.fd = STDIN_FILENO, .events = POLLIN};
    struct timespec wait = {.tv_nsec = LOOK_EVERY_MS * 1000000L};
    int n = 0;
    sigemptyset(&ours);
    sigaddset(&ours, SIGINT);
    for (int i = 0; i < N_HANDLED; i++) sigaddset(&ours, handled[i]);
    pthread_sigmask(SIG_BLOCK, &ours, &before);
    while (n <= 0 && *t->interrupts == t->interrupts_before) {
        if (stopping) stop_process(t);
        if (resized) draw_again(t);
        n = ppoll(&keyboard, 1, &wait, &before);
        if (n < 0 && errno != EINTR) break; // read() says what it is
    }
    t->interrupted = *t->interrupts != t->interrupts_before;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return !t->interrupted;
}

/* ---- characters ---- */

/* 1: a character; 0: end of file; -1: interrupted.  Bytes that are not UTF-8 are dropped.  A Ctrl-D
 * that was typed before the line was begun, as during an answer, comes as a NUL. */
static int read_character(EditLine *edit, wchar_t *out) {
    run_terminal *t;
    char byte;
    el_get(edit, EL_CLIENTDATA, &t);
    for (;;) {
        if (!wait_for_byte(t)) return -1;
        ssize_t n = read(STDIN_FILENO, &byte, 1);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return 0;
        size_t used = mbrtowc(out, &byte, 1, &t->decoding);
        if (used == (size_t)-1) memset(&t->decoding, 0, sizeof t->decoding);
        if (used == 0) *out = CTRL_D;
        if (used <= 1) return 1;
    }
}

static char *show_prompt(EditLine *edit) {
    run_terminal *t;
    el_get(edit, EL_CLIENTDATA, &t);
    return (char *)(uintptr_t)t->prompt; // libedit only reads it
}

/* The text of a model is UTF-8, so the lines are, too, whatever LANG says. */
static void use_utf8(void) {
    if (setlocale(LC_CTYPE, "") == NULL || strcmp(nl_langinfo(CODESET), "UTF-8") != 0)
        setlocale(LC_CTYPE, "C.UTF-8");
}

/* ---- the history's file ---- */

bool run_history_path(const char *xdg_state_home, const char *home, char *out, size_t n_out) {
    int n = -1;
    if (xdg_state_home != NULL && xdg_state_home[0] == '/') // others are to be ignored
        n = snprintf(out, n_out, "%s/inferd/history", xdg_state_home);
    else if (home != NULL && home[0] == '/')
        n = snprintf(out, n_out, "%s/.local/state/inferd/history", home);
    return n > 0 && (size_t)n < n_out;
}

/* The folders of a path that are not there yet, for their owner only. */
static void make_folders(const char *path) {
    char part[PATH_BYTES];
    snprintf(part, sizeof part, "%s", path);
    for (char *slash = strchr(part + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(part, 0700);
        *slash = '/';
    }
}

/* For appending; -1 with errno.  A device, such as a link to /dev/null, is no history. */
static int open_file(const char *path) {
    struct stat about;
    int fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0600);
    if (fd < 0) return -1;
    if (fstat(fd, &about) == 0 && S_ISREG(about.st_mode) &&
        ((about.st_mode & 077) == 0 || fchmod(fd, 0600) == 0))
        return fd;
    close(fd);
    errno = EPERM;
    return -1;
}

/* The last bytes of the file, NUL-terminated and from the beginning of a line; false: unreadable.
 */
static bool read_end(int fd, buf *text) {
    struct stat about;
    if (fstat(fd, &about) != 0) return false;
    off_t from = about.st_size > RUN_HISTORY_BYTES_MAX ? about.st_size - RUN_HISTORY_BYTES_MAX : 0;
    char piece[4096];
    ssize_t n;
    while ((n = pread(fd, piece, sizeof piece, from + (off_t)text->n)) > 0)
        buf_add(text, piece, (size_t)n);
    if (n < 0 || text->failed) return false;
    const char *first = from > 0 ? memchr(text->p, '\n', text->n) : NULL;
    if (first != NULL) {
        text->n -= (size_t)(first + 1 - text->p);
        memmove(text->p, first + 1, text->n);
    }
    return true;
}

/* The newest lines alone become the file, at once. */
static void shorten_file(const char *path, const char *from) {
    char other[PATH_BYTES + 16];
    snprintf(other, sizeof other, "%s.%ld", path, (long)getpid());
    int fd = open(other, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) return;
    size_t n = strlen(from);
    bool whole = write(fd, from, n) == (ssize_t)n;
    if (close(fd) != 0 || !whole || rename(other, path) != 0) unlink(other);
}

static void enter(run_terminal *t, const char *line) {
    HistEvent event;
    if (line[0] != 0) history(t->history, &event, H_ENTER, line);
}

static void load_lines(run_terminal *t, buf *text, bool shorten) {
    buf_cstr(text);
    char *line = text->p;
    size_t n_lines = 0;
    for (size_t i = 0; i < text->n; i++) n_lines += text->p[i] == '\n';
    for (; n_lines > RUN_HISTORY_LINES_MAX; n_lines--, shorten = true)
        line = strchr(line, '\n') + 1;
    if (shorten) shorten_file(t->path, line);
    for (char *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        *end = 0;
        enter(t, line);
    }
}

static void open_history(run_terminal *t, inferd_err *note) {
    if (!run_history_path(getenv("XDG_STATE_HOME"), getenv("HOME"), t->path, sizeof t->path)) {
        t->path[0] = 0;
        return;
    }
    buf text;
    struct stat about;
    buf_init(&text, RUN_HISTORY_BYTES_MAX + 8192);
    make_folders(t->path);
    int fd = open_file(t->path);
    if (fd < 0 || !read_end(fd, &text) || fstat(fd, &about) != 0) {
        inferd_fail(note, INFERD_EIO, "%s: %s; this history is not kept", t->path, strerror(errno));
        t->path[0] = 0;
    } else if (text.n > 0 && memchr(text.p, 0, text.n) == NULL) {
        load_lines(t, &text, (uint64_t)about.st_size > text.n);
    }
    if (fd >= 0) close(fd);
    buf_deinit(&text);
}

void run_terminal_remember(run_terminal *t, const char *line) {
    buf text;
    enter(t, line);
    if (t->path[0] == 0 || line[0] == 0 || strlen(line) > RUN_HISTORY_LINE_BYTES_MAX ||
        strchr(line, '\n') != NULL) // Ctrl-V Ctrl-J
        return;
    int fd = open_file(t->path);
    if (fd < 0) return;
    buf_init(&text, 0);
    buf_add_str(&text, line);
    buf_add_char(&text, '\n');
    /* One write: lines of two chats do not mix.  A full disk only costs the entry. */
    if (!text.failed && write(fd, text.p, text.n) < 0) t->path[0] = 0;
    buf_deinit(&text);
    close(fd);
}

/* ---- lines ---- */

run_terminal *run_terminal_open(bool history_file, const volatile sig_atomic_t *interrupts,
                                inferd_err *note) {
    HistEvent event;
    run_terminal *t = calloc(1, sizeof *t);
    *note = (inferd_err){0};
    if (t == NULL) return NULL;
    use_utf8();
    t->interrupts = interrupts;
    t->prompt = "";
    t->history = history_init();
    t->edit = el_init("inferd", stdin, stdout, stderr);
    if (t->history == NULL || t->edit == NULL) {
        run_terminal_close(t);
        return NULL;
    }
    history(t->history, &event, H_SETSIZE, RUN_HISTORY_LINES_MAX);
    history(t->history, &event, H_SETUNIQUE, 1);
    el_set(t->edit, EL_CLIENTDATA, t);
    el_set(t->edit, EL_EDITOR, "emacs");
    el_set(t->edit, EL_SIGNAL, 0);
    el_set(t->edit, EL_PROMPT, show_prompt);
    el_set(t->edit, EL_HIST, history, t->history);
    el_set(t->edit, EL_GETCFN, read_character);
    el_set(t->edit, EL_BIND, "^R", "em-inc-search-prev", NULL);
    el_source(t->edit, NULL); // the user's .editrc
    if (history_file) open_history(t, note);
    return t;
}

void run_terminal_close(run_terminal *t) {
    if (t == NULL) return;
    if (t->edit != NULL) el_end(t->edit);
    if (t->history != NULL) history_end(t->history);
    free(t);
}

run_read run_terminal_read(run_terminal *t, const char *prompt, buf *line) {
    struct sigaction before[N_HANDLED];
    int n = 0;
    t->prompt = prompt;
    t->interrupted = false;
    t->interrupts_before = *t->interrupts;
    resized = stopping = 0;
    memset(&t->decoding, 0, sizeof t->decoding);
    take_signals(before);
    el_set(t->edit, EL_PREP_TERM, 1); // before the prompt: the user may answer it at once
    const char *text = el_gets(t->edit, &n);
    give_signals_back(before);
    buf_clear(line);
    if (t->interrupted) return RUN_READ_INTERRUPT;
    if (text == NULL || n <= 0) return RUN_READ_END;
    size_t length = strlen(text);
    if (length > 0 && text[length - 1] == '\n') length--;
    buf_add(line, text, length);
    return RUN_READ_LINE;
}
