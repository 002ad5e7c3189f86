// SPDX-License-Identifier: Apache-2.0
/*
 * Design: libedit reads through read_key(), which waits for the keyboard and for signals. Signals are blocked
 *         (client/cli/tool.h), so no operation is ever interrupted in the middle.
 */
#include "client/cli/chat/lines.h"

#include <errno.h>
#include <fcntl.h>
#include <histedit.h>
#include <locale.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>
#include <wchar.h>

#include "base/close.h"
#include "client/cli/line_reader.h"
#include "client/cli/request.h"

#define HISTORY_LINES 1000

struct sl_lines {
    struct sl_signals *signals;
    const char *history_path;
    EditLine *edit; // NULL: not a terminal
    History *history;
    const char *prompt;
    bool signalled;
    mbstate_t partial;           // state of a multibyte character that is partly typed
    struct sl_line_reader piped; // used without a terminal
};

// Sets our terminal modes again and redraws the line, after the size has changed or a shell may have set its modes.
static void follow_screen(struct sl_lines *lines) {
    lines->signals->screen_changed = false;
    if (lines->edit) {
        el_set(lines->edit, EL_PREP_TERM, 0); // otherwise the editor assumes that they are set already
        el_set(lines->edit, EL_PREP_TERM, 1);
        el_resize(lines->edit);
        el_set(lines->edit, EL_REFRESH);
    }
}

// Restores the terminal's modes, because a shell wants the terminal.
static void leave_screen(void *lines) {
    el_set(((struct sl_lines *)lines)->edit, EL_PREP_TERM, 0);
}

// Waits until there is input. False: a signal that ends the wait has arrived.
static bool wait_for_input(struct sl_lines *lines) {
    for (;;) {
        if (lines->signals->screen_changed) {
            follow_screen(lines);
        }
        struct pollfd polled[2] = {{.fd = STDIN_FILENO, .events = POLLIN},
                                   {.fd = lines->signals->fd, .events = POLLIN}};
        int n = poll(polled, 2, -1);
        if (n > 0 && polled[1].revents != 0) {
            int n_before = lines->signals->n_received;
            if (sl_signals_received(lines->signals) == n_before) {
                continue;
            }
            lines->signalled = true;
            return false;
        }
        if (n > 0 || (n < 0 && errno != EINTR)) {
            return true; // read() will report an error of the descriptor
        }
    }
}

// ---- a terminal -----------------------------------------------------------------------------------------------------

// Reads a character for libedit: returns 1 with a character, 0 at the end, -1 when the line is discarded.
static int read_key(EditLine *edit, wchar_t *key_out) {
    struct sl_lines *lines;
    if (el_get(edit, EL_CLIENTDATA, &lines) != 0) {
        return -1;
    }
    for (;;) {
        char byte;
        if (!wait_for_input(lines)) {
            return -1;
        }
        ssize_t n = read(STDIN_FILENO, &byte, 1);
        if (n <= 0) {
            return n == 0 ? 0 : -1;
        }
        size_t used = mbrtowc(key_out, &byte, 1, &lines->partial);
        if (used == (size_t)-1) { // not a valid character: restart the decoder
            memset(&lines->partial, 0, sizeof lines->partial);
        } else if (used != (size_t)-2) {
            return 1;
        }
    }
}

static char *show_prompt(EditLine *edit) {
    struct sl_lines *lines;
    return el_get(edit, EL_CLIENTDATA, &lines) == 0 ? (char *)lines->prompt : (char *)"";
}

// Sets UTF-8 for typed characters, even if the locale has no UTF-8.
static void set_characters(void) {
    const char *name = setlocale(LC_CTYPE, "");
    if (!name || MB_CUR_MAX < 2) {
        (void)setlocale(LC_CTYPE, "C.UTF-8");
    }
}

static enum sl_status open_terminal(struct sl_lines *lines, FILE *out, struct sl_error *err) {
    HistEvent event;
    set_characters();
    lines->edit = el_init("sluice", stdin, out, stderr);
    lines->history = history_init();
    SL_FAIL_IF(!lines->edit || !lines->history, err, SL_ERR_EXHAUSTED, "no memory for the line editor");
    el_set(lines->edit, EL_CLIENTDATA, lines);
    el_set(lines->edit, EL_GETCFN, read_key);
    el_set(lines->edit, EL_PROMPT, show_prompt);
    el_set(lines->edit, EL_SIGNAL, 0);
    el_set(lines->edit, EL_EDITOR, "emacs");
    el_set(lines->edit, EL_HIST, history, lines->history);
    el_set(lines->edit, EL_BIND, "^R", "em-inc-search-prev", NULL);
    (void)el_source(lines->edit, NULL); // ~/.editrc, if there is one
    (void)history(lines->history, &event, H_SETSIZE, HISTORY_LINES);
    (void)history(lines->history, &event, H_SETUNIQUE, 1);
    if (lines->history_path) {
        (void)history(lines->history, &event, H_LOAD, lines->history_path); // on the first run the file does not exist
    }
    return SL_OK;
}

// Appends one line, with a history of its own. Other processes may append at the same time, and a failure must not
// destroy lines in the file.
static bool append_to_file(const char *path, const char *line) {
    HistEvent event;
    History *one = history_init();
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    FILE *file = fd >= 0 && one ? fdopen(fd, "a") : NULL;
    if (!file) {
        sl_close(fd);
        if (one) {
            history_end(one);
        }
        return false;
    }
    bool written = history(one, &event, H_SETSIZE, 1) >= 0 && history(one, &event, H_ENTER, line) >= 0 &&
                   flock(fd, LOCK_EX) == 0 && fseek(file, 0, SEEK_END) == 0 &&
                   history(one, &event, H_NSAVE_FP, (size_t)1, file) >= 0;
    written &= fclose(file) == 0; // closing also unlocks the file
    history_end(one);
    return written;
}

static void remember(struct sl_lines *lines, const char *line) {
    HistEvent event;
    if (line[strspn(line, " \t")] == '\0') {
        return;
    }
    (void)history(lines->history, &event, H_ENTER, line);
    if (lines->history_path && !append_to_file(lines->history_path, line)) {
        fprintf(stderr, "sluice chat: %s cannot be written: lines are not kept\n", lines->history_path);
        lines->history_path = NULL;
    }
}

static enum sl_status next_typed(struct sl_lines *lines, char **line_out, struct sl_error *err) {
    int n = 0;
    lines->signalled = false;
    lines->signals->leave_arg = lines;
    lines->signals->leave_screen = leave_screen;
    const char *typed = el_gets(lines->edit, &n);
    lines->signals->leave_screen = NULL; // the editor does not use the terminal now
    SL_FAIL_IF(lines->signalled, err, SL_ERR_CANCELLED, "stopped by a signal");
    if (!typed || n <= 0) {
        return SL_ERR_NOT_FOUND;
    }
    char *line = strdup(typed);
    SL_FAIL_IF(!line, err, SL_ERR_EXHAUSTED, "no memory for a line");
    line[strcspn(line, "\r\n")] = '\0';
    remember(lines, line);
    *line_out = line;
    return SL_OK;
}

// ---- without a terminal ---------------------------------------------------------------------------------------------

static enum sl_status next_piped(struct sl_lines *lines, char **line_out, struct sl_error *err) {
    struct sl_input_line line;
    SL_TRY(sl_line_reader_next(&lines->piped, &line, err));
    if (line.is_end) {
        return SL_ERR_NOT_FOUND;
    }
    SL_FAIL_IF(line.is_too_long, err, SL_ERR_INVALID,
               "a line is longer than %zu MiB, the most that one message carries", SL_MAX_PROMPT_BYTES >> 20);
    SL_FAIL_IF(memchr(line.text, '\0', line.n_bytes), err, SL_ERR_INVALID,
               "standard input contains a zero byte: it is not a text");
    size_t n = line.n_bytes > 0 && line.text[line.n_bytes - 1] == '\r' ? line.n_bytes - 1 : line.n_bytes;
    *line_out = strndup(line.text, n);
    return *line_out ? SL_OK : sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a line");
}

// ---- both -----------------------------------------------------------------------------------------------------------

enum sl_status sl_lines_open(struct sl_signals *signals, FILE *out, const char *history_path,
                             struct sl_lines **lines_out, struct sl_error *err) {
    SL_NEW_OR_FAIL(struct sl_lines, lines, err, "no memory for lines");
    lines->signals = signals;
    lines->history_path = history_path;
    lines->piped = (struct sl_line_reader){.fd = STDIN_FILENO, .max_bytes = SL_MAX_PROMPT_BYTES, .signals = signals};
    SL_TRY_OR(isatty(STDIN_FILENO) ? open_terminal(lines, out, err) : SL_OK, sl_lines_close(&lines));
    *lines_out = lines;
    return SL_OK;
}

void sl_lines_close(struct sl_lines **lines_inout) {
    SL_TAKE_OR_RETURN(lines, lines_inout);
    if (lines->history) {
        history_end(lines->history);
    }
    if (lines->edit) {
        el_end(lines->edit);
    }
    sl_line_reader_cleanup(&lines->piped);
    free(lines);
}

bool sl_lines_is_terminal(const struct sl_lines *lines) {
    return lines->edit != NULL;
}

enum sl_status sl_lines_next(struct sl_lines *lines, const char *prompt, char **line_out, struct sl_error *err) {
    lines->prompt = prompt;
    return lines->edit ? next_typed(lines, line_out, err) : next_piped(lines, line_out, err);
}
