// SPDX-License-Identifier: Apache-2.0
#include "lab/plot.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define TICK_CHARACTERS 44

extern char **environ;

char *sl_plot_quote(const char *text, char *buf, size_t buf_bytes) {
    size_t n = 0;
    buf[n++] = '\'';
    for (; *text && n + 4 <= buf_bytes; text++) {
        if (*text == '\'') {
            buf[n++] = '\''; // quotes are doubled
        }
        buf[n++] = (unsigned char)*text < ' ' || *text == 0x7f ? '?' : *text;
    }
    buf[n++] = '\'';
    buf[n] = '\0';
    return buf;
}

void sl_plot_tick(FILE *script, size_t row, const char *text) {
    char cut[TICK_CHARACTERS + 4], quoted[2 * sizeof cut];
    bool is_long = strlen(text) > TICK_CHARACTERS;
    snprintf(cut, sizeof cut, "%.*s%s", is_long ? TICK_CHARACTERS - 3 : TICK_CHARACTERS, text, is_long ? "..." : "");
    fputs(row > 0 ? ", " : "set ytics (", script);
    for (const char *c = sl_plot_quote(cut, quoted, sizeof quoted); *c;
         c++) { // ticks are formats: percent signs are doubled
        fputs(*c == '%' ? "%%" : (char[]){*c, '\0'}, script);
    }
    fprintf(script, " %zu", row);
}

void sl_plot_ticks_end(FILE *script) {
    fputs(") nomirror\n", script);
}

void sl_plot_heat_map(FILE *script, const char *name, size_t n_rows, size_t n_columns, double at, double step) {
    fprintf(script,
            "set palette defined (0 '#ffffff', 0.5 '#fdae61', 1 '#7f0000')\nset cbrange [0:*]\nunset grid\nunset key\n"
            "set xrange [%.9g:%.9g]\nset yrange [%zu.5:-0.5]\n"
            "plot $%s matrix using (%.9g + $1 * %.9g):2:(%.9g):(0.5):3 with boxxyerror linecolor palette fillstyle "
            "solid notitle\n",
            at - 0.5 * step, at + ((double)n_columns - 0.5) * step, n_rows > 0 ? n_rows - 1 : 0, name, at, step,
            0.5 * step);
}

static enum sl_status open_script(struct sl_plot *plot, struct sl_error *err) {
    const char *folder = getenv("TMPDIR");
    snprintf(plot->script_path, sizeof plot->script_path, "%s/sluice-plot-XXXXXX",
             folder && folder[0] ? folder : "/tmp");
    int fd = mkostemp(plot->script_path, O_CLOEXEC);
    if (fd < 0) {
        plot->script_path[0] = '\0'; // nothing to remove
        return sl_fail(err, SL_ERR_IO, "a temporary file: cannot be written: %s", strerror(errno));
    }
    plot->script = fdopen(fd, "w");
    if (plot->script == NULL) {
        close(fd);
        return sl_fail(err, SL_ERR_EXHAUSTED, "out of memory");
    }
    return SL_OK;
}

enum sl_status sl_plot_open(struct sl_plot *plot, const char *path, int width, int height, struct sl_error *err) {
    *plot = (struct sl_plot){0};
    plot->status = sl_whole_file_open(&plot->image, path, err);
    if (plot->status == SL_OK) {
        plot->status = open_script(plot, err);
    }
    if (plot->status == SL_OK) {
        char quoted[2 * PATH_MAX];
        fprintf(plot->script, "set terminal png noenhanced size %d,%d\nset output %s\n", width, height,
                sl_plot_quote(plot->image.temporary, quoted, sizeof quoted));
    }
    return plot->status;
}

// Runs gnuplot; quiet: discards its standard output.
static enum sl_status run_gnuplot(char *argument, bool quiet, struct sl_error *err) {
    char *argv[] = {(char *)"gnuplot", argument, NULL};
    posix_spawn_file_actions_t actions;
    pid_t pid;
    posix_spawn_file_actions_init(&actions);
    if (quiet) {
        posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    }
    posix_spawnattr_t attributes; // commands block signals that they poll for; gnuplot must not
    sigset_t none;
    sigemptyset(&none);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
    int status = posix_spawnp(&pid, argv[0], &actions, &attributes, argv, environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    SL_FAIL_IF(status == ENOENT, err, SL_ERR_UNSUPPORTED,
               "no gnuplot in PATH: install the package gnuplot-nox, or leave out --png");
    SL_FAIL_IF(status != 0, err, SL_ERR_IO, "gnuplot could not be started: %s", strerror(status));
    pid_t ended;
    do {
        ended = waitpid(pid, &status, 0);
    } while (ended < 0 && errno == EINTR);
    SL_FAIL_IF(ended != pid || !WIFEXITED(status) || WEXITSTATUS(status) != 0, err, SL_ERR_IO,
               "gnuplot failed; what it said is above");
    return SL_OK;
}

enum sl_status sl_plot_check(const char *path, struct sl_error *err) {
    struct sl_whole_file image;
    enum sl_status status = path ? sl_whole_file_open(&image, path, err) : SL_OK;
    if (path && status == SL_OK) {
        sl_whole_file_abandon(&image);
        status = run_gnuplot((char *)"--version", true, err);
    }
    return status;
}

// Checks the image: gnuplot does not report a full disk, but a complete image ends with its last chunk.
static enum sl_status check_image(const struct sl_plot *plot, struct sl_error *err) {
    static const unsigned char end[] = {0, 0, 0, 0, 'I', 'E', 'N', 'D', 0xae, 0x42, 0x60, 0x82};
    unsigned char found[sizeof end];
    FILE *file = fopen(plot->image.temporary, "rb");
    bool whole = file != NULL && fseek(file, -(long)sizeof end, SEEK_END) == 0 &&
                 fread(found, 1, sizeof found, file) == sizeof found && memcmp(found, end, sizeof end) == 0;
    if (file != NULL) {
        fclose(file);
    }
    return whole ? SL_OK
                 : sl_fail(err, SL_ERR_IO, "%s: gnuplot has not written a whole picture; is the disk full?",
                           plot->image.path);
}

enum sl_status sl_plot_finish(struct sl_plot *plot, struct sl_error *err) {
    enum sl_status status = plot->status;
    if (status == SL_OK) {
        bool written = !ferror(plot->script);
        written = fclose(plot->script) == 0 && written;
        plot->script = NULL;
        status = written ? run_gnuplot(plot->script_path, false, err)
                         : sl_fail(err, SL_ERR_IO, "%s: cannot be written: %s", plot->script_path, strerror(errno));
        status = status == SL_OK ? check_image(plot, err) : status;
        status = status == SL_OK ? sl_whole_file_finish(&plot->image, err) : status;
    }
    sl_whole_file_abandon(&plot->image);
    if (plot->script_path[0]) {
        unlink(plot->script_path);
    }
    return status;
}
