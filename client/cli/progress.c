// SPDX-License-Identifier: Apache-2.0
#include "client/cli/progress.h"

#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/options/config.h"
#include "client/cli/tool.h"

#define LONGEST_BAR  40
#define SHORTEST_BAR 6

#define FIRST_LINE_NS (1000 * SL_NS_PER_MS) // what ends sooner needs no line
#define LINE_NS       (5000 * SL_NS_PER_MS)

bool sl_progress_update(struct sl_progress *progress, const Sluice__V1__Event *event) {
    char text[32];
    switch (event->what_case) {
    case SLUICE__V1__EVENT__WHAT_STATE:
        if (event->state->state != SLUICE__V1__JOB_STATE__QUEUED) {
            return false; // the other states have events of their own
        }
        *progress = (struct sl_progress){.phase = "queued"};
        return true;
    case SLUICE__V1__EVENT__WHAT_PREFILL:
        *progress = (struct sl_progress){
            .phase = "prefill", .done = event->prefill->tokens_done, .total = event->prefill->tokens_total};
        sl_format_bytes((double)event->prefill->resident_bytes, text, sizeof text);
        if (event->prefill->restoring) {
            snprintf(progress->note, sizeof progress->note, "a store reads the document back from its disk");
        } else if (event->prefill->tokens_reused > 0) {
            snprintf(progress->note, sizeof progress->note, "resident %s, %lld reused", text,
                     (long long)event->prefill->tokens_reused);
        } else {
            snprintf(progress->note, sizeof progress->note, "resident %s", text);
        }
        return true;
    case SLUICE__V1__EVENT__WHAT_SHIP:
        *progress = (struct sl_progress){
            .phase = "ship", .done = event->ship->bytes_sent, .total = event->ship->bytes_total, .bytes = true};
        return true;
    default:
        return false;
    }
}

// Writes "57%  9216/16384 tokens", or without a total "9216 tokens".
static void render_amount(const struct sl_progress *progress, double share, char *buf, size_t buf_bytes) {
    char done[32], total[32];
    if (progress->bytes) {
        sl_format_bytes((double)progress->done, done, sizeof done);
        sl_format_bytes((double)progress->total, total, sizeof total);
    } else {
        snprintf(done, sizeof done, "%lld", (long long)progress->done);
        snprintf(total, sizeof total, "%lld", (long long)progress->total);
    }
    const char *unit = progress->bytes ? "" : progress->unit ? progress->unit : "tokens", *space = unit[0] ? " " : "";
    if (progress->total > 0) {
        snprintf(buf, buf_bytes, "%3d%%  %s/%s%s%s", (int)(share * 100), done, total, space, unit);
    } else {
        snprintf(buf, buf_bytes, "%s%s%s", done, space, unit);
    }
}

static void render_bar(double share, int length, char *buf) {
    int filled = (int)(share * length);
    for (int i = 0; i < length; i++) {
        buf[i] = i < filled ? '=' : i == filled ? '>' : ' ';
    }
    buf[length] = '\0';
}

char *sl_progress_render(const struct sl_progress *progress, int width, char *buf, size_t buf_bytes) {
    if (buf_bytes == 0) {
        return buf;
    }
    const char *phase = progress->phase ? progress->phase : "";
    char amount[96] = "", bar[LONGEST_BAR + 1] = "";
    double share = progress->total > 0 ? (double)progress->done / (double)progress->total : 0;
    share = share < 0 ? 0 : share > 1 ? 1 : share; // events may be late, and totals are estimates
    if (progress->done > 0 || progress->total > 0) {
        render_amount(progress, share, amount, sizeof amount);
    }
    // The line is "phase [bar] amount  note".
    int fixed = (int)(strlen(phase) + strlen(amount)) + 4;
    int note = progress->note[0] ? (int)strlen(progress->note) + 2 : 0;
    if (fixed + note + SHORTEST_BAR > width) {
        note = 0;
    }
    int length = width - fixed - note;
    length = length > LONGEST_BAR ? LONGEST_BAR : length;
    bool with_bar = progress->total > 0 && length >= SHORTEST_BAR;
    if (with_bar) {
        render_bar(share, length, bar);
    }
    snprintf(buf, buf_bytes, "%s%s%s%s%s%s%s%s", phase, with_bar ? " [" : "", bar, with_bar ? "]" : "",
             amount[0] ? " " : "", amount, note ? "  " : "", note ? progress->note : "");
    if (width >= 0 && (size_t)width < buf_bytes && strlen(buf) > (size_t)width) {
        buf[width] = '\0';
    }
    return buf;
}

char *sl_progress_loading_phase(const char *model, char *buf, size_t buf_bytes) {
    size_t end = strlen(model);
    while (end > 1 && model[end - 1] == '/') {
        end--;
    }
    size_t begin = end;
    while (begin > 0 && model[begin - 1] != '/') {
        begin--;
    }
    snprintf(buf, buf_bytes, "loading %.*s", (int)(end - begin), model + begin);
    sl_log_disarm(buf, strlen(buf));
    return buf;
}

void sl_progress_print(const struct sl_progress *progress, const char *command, FILE *file) {
    char done[32], total[32];
    const char *phase = progress->phase ? progress->phase : "", *comma = progress->note[0] ? ", " : "";
    sl_format_bytes((double)progress->done, done, sizeof done);
    sl_format_bytes((double)progress->total, total, sizeof total);
    if (progress->total > 0) {
        fprintf(file, "%s: %s: %d%% of %s%s%s\n", command, phase,
                (int)(100 * (double)progress->done / (double)progress->total), total, comma, progress->note);
    } else if (progress->done > 0) {
        fprintf(file, "%s: %s: %s%s%s\n", command, phase, done, comma, progress->note);
    } else {
        fprintf(file, "%s: %s: %s\n", command, phase, progress->note);
    }
    fflush(file);
}

bool sl_progress_is_due(int64_t *next_ns_inout, int64_t now_ns) {
    if (*next_ns_inout == 0) {
        *next_ns_inout = now_ns + FIRST_LINE_NS;
        return false;
    }
    if (now_ns < *next_ns_inout) {
        return false;
    }
    *next_ns_inout = now_ns + LINE_NS;
    return true;
}

void sl_progress_draw(const struct sl_progress *progress, int width, FILE *terminal) {
    char line[256];
    // One column stays free: writing into the last one would make some terminals wrap.
    fprintf(terminal, "\r%s\033[K", sl_progress_render(progress, width - 1, line, sizeof line));
    fflush(terminal);
}

void sl_progress_clear(FILE *terminal) {
    fputs("\r\033[K", terminal);
    fflush(terminal);
}

void sl_progress_show(const char *phase, int64_t done, int64_t total) {
    const struct sl_progress progress = {.phase = phase, .done = done, .total = total};
    int width = sl_terminal_width(STDERR_FILENO);
    if (width > 0) {
        sl_progress_draw(&progress, width, stderr);
    }
}

void sl_progress_hide(void) {
    if (sl_terminal_width(STDERR_FILENO) > 0) {
        sl_progress_clear(stderr);
    }
}
