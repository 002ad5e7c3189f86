// SPDX-License-Identifier: Apache-2.0
#include "client/cli/follow.h"

#include <string.h>
#include <unistd.h>

#include "client/cli/message_json.h"
#include "engine/compress/recipe/recipe.h"
#include "engine/kvcache/format.h"
#include "proto/kept.h"
#include "net/rpc/rpc.h"

#define REDRAW_NS (40 * SL_NS_PER_MS)

static void hide_progress(struct sl_follow *follow) {
    if (follow->progress_shown) {
        sl_progress_clear(follow->err);
        follow->progress_shown = false;
    }
}

static void draw_progress(struct sl_follow *follow) {
    if (follow->width == 0 || follow->quiet || follow->json || follow->answer_shown) {
        return;
    }
    bool complete = follow->progress.total > 0 && follow->progress.done >= follow->progress.total;
    int64_t now_ns = sl_now_ns();
    if (complete || now_ns - follow->drawn_ns >= REDRAW_NS) {
        sl_progress_draw(&follow->progress, follow->width, follow->err);
        follow->progress_shown = true;
        follow->drawn_ns = now_ns;
    }
}

static void show_progress(struct sl_follow *follow, const Sluice__V1__Event *event) {
    if (sl_progress_update(&follow->progress, event)) {
        draw_progress(follow);
    }
}

static void show_token(struct sl_follow *follow, const Sluice__V1__Token *token) {
    if (token->text[0] == '\0') {
        return;
    }
    hide_progress(follow);
    follow->answer_shown = true;
    follow->output_failed |= !sl_answer_print(token->text, follow->out);
}

static int exit_code_of(const Sluice__V1__Finished *finished) {
    switch (finished->reason) {
    case SLUICE__V1__FINISHED__REASON__STOP_TOKEN:
    case SLUICE__V1__FINISHED__REASON__STOP_STRING:
    case SLUICE__V1__FINISHED__REASON__LENGTH:
        return SL_EXIT_OK;
    case SLUICE__V1__FINISHED__REASON__CANCELLED_BY_CLIENT:
        return SL_EXIT_CANCELLED;
    default:
        break;
    }
    const enum sl_exit code = sl_exit_of(sl_rpc_status_of_code(finished->status_code));
    return code == SL_EXIT_OK || code == SL_EXIT_USAGE ? SL_EXIT_FAILED : code;
}

static bool ships(const Sluice__V1__Statistics *s) {
    return strncmp(s->transport, "nothing", strlen("nothing")) != 0; // else it says why not
}

int64_t sl_statistics_shipped_bytes(const Sluice__V1__Statistics *statistics) {
    return ships(statistics) ? statistics->capsule_bytes : 0;
}

static void print_cost(const Sluice__V1__Statistics *s, FILE *file) {
    const char *read_whole = sl_not_joined_word(s->not_joined),
               *why = read_whole ? read_whole : sl_not_cached_word(s->not_cached);
    char bytes[32];
    fprintf(file,
            "%lld tokens read, %lld not read again%s%s%s; %s shipped; first token after %.0f ms, %.0f ms in all\n",
            (long long)(s->n_prompt_tokens - s->n_reused_tokens), (long long)s->n_reused_tokens,
            read_whole ? " (documents read as one text: "
            : why      ? " (not cached: "
                       : "",
            why ? why : "", why ? ")" : "",
            sl_format_bytes((double)sl_statistics_shipped_bytes(s), bytes, sizeof bytes), s->ttft_ms, s->total_ms);
}

static void show_end(struct sl_follow *follow, const Sluice__V1__Finished *finished) {
    hide_progress(follow);
    follow->finished = true; // the end of one turn of a local run; the next turn resets it
    follow->exit_code = exit_code_of(finished);
    if (follow->json) {
        return;
    }
    if (follow->answer_shown && (fputc('\n', follow->out) == EOF || fflush(follow->out) == EOF)) {
        follow->output_failed = true;
    }
    if (follow->exit_code != SL_EXIT_OK) {
        fprintf(follow->err, "sluice %s: the job %s: %s: %s\n", follow->command,
                follow->exit_code == SL_EXIT_CANCELLED ? "was cancelled" : "failed",
                sl_rpc_code_name(finished->status_code), finished->status_text);
    }
    if (follow->exit_code == SL_EXIT_OK && !follow->answer_shown && !follow->quiet) {
        fprintf(follow->err, "sluice %s: the answer is empty: %s\n", follow->command,
                finished->reason == SLUICE__V1__FINISHED__REASON__STOP_STRING ? "it begins with the text of --stop"
                : follow->no_chat ? "the model ended it at once, as instruct models do with a text that is not a chat "
                                    "(--chat, and no --raw)"
                                  : "the model ended it at once");
    }
    if (finished->statistics && !follow->quiet && follow->cost) {
        print_cost(finished->statistics, follow->err);
    } else if (finished->statistics && !follow->quiet && !follow->brief) {
        sl_statistics_print(finished->statistics, follow->err);
    }
    follow->answer_shown = false;
}

static void show_notice(struct sl_follow *follow, const Sluice__V1__Notice *notice) {
    if (!follow->quiet) {
        hide_progress(follow);
        fprintf(follow->err, "%ssluice %s: notice: %s\n", follow->answer_shown ? "\n" : "", follow->command,
                notice->text);
    }
}

static void on_event(void *arg, const Sluice__V1__Event *event) {
    struct sl_follow *follow = arg;
    if (follow->look_fn && !follow->look_fn(follow->also_arg, event)) {
        return;
    }
    follow->reconnecting = false;
    if (follow->json) {
        if (!sl_message_print_json(&event->base, follow->out)) {
            follow->output_failed = true;
        }
    } else if (event->what_case == SLUICE__V1__EVENT__WHAT_TOKEN) {
        show_token(follow, event->token);
    } else if (event->what_case == SLUICE__V1__EVENT__WHAT_NOTICE) {
        show_notice(follow, event->notice);
    } else {
        show_progress(follow, event);
    }
    if (event->what_case == SLUICE__V1__EVENT__WHAT_FINISHED) {
        show_end(follow, event->finished);
    }
}

static void on_reconnect(void *arg, const struct sl_error *why) {
    struct sl_follow *follow = arg;
    if (!follow->reconnecting && !follow->quiet) { // once per outage, not once per attempt
        hide_progress(follow);
        fprintf(follow->err, "sluice %s: connection lost, trying again: %s\n", follow->command, why->text);
    }
    follow->reconnecting = true;
}

static bool stopped(void *arg) {
    struct sl_follow *follow = arg;
    return follow->output_failed || (follow->signals && sl_signals_received(follow->signals) > 0) ||
           (follow->also_stopped && follow->also_stopped(follow->also_arg));
}

bool sl_follow_loading(void *arg, size_t done_bytes, size_t total_bytes) {
    struct sl_follow *follow = arg;
    char phase[SL_LOADING_PHASE_BYTES], command[32];
    follow->progress = (struct sl_progress){.phase = sl_progress_loading_phase(follow->model, phase, sizeof phase),
                                            .done = (int64_t)done_bytes,
                                            .total = (int64_t)total_bytes,
                                            .bytes = true};
    draw_progress(follow);
    if (follow->width == 0 && !follow->quiet && !follow->json &&
        sl_progress_is_due(&follow->next_line_ns, sl_now_ns())) {
        snprintf(command, sizeof command, "sluice %s", follow->command);
        sl_progress_print(&follow->progress, command, follow->err);
    }
    follow->progress.phase = ""; // the text is ours
    return !stopped(follow);
}

struct sl_follow sl_follow_of(const char *command, const struct sl_tool_config *tool, bool quiet,
                              struct sl_signals *signals) {
    return (struct sl_follow){.command = command,
                              .coordinator = tool->coordinator,
                              .json = tool->json,
                              .quiet = quiet,
                              .out = stdout,
                              .err = stderr,
                              .width = sl_terminal_width(STDERR_FILENO),
                              .signals = signals};
}

void sl_follow_attach(struct sl_follow *follow, struct sl_watch *watch) {
    watch->on_event = on_event;
    watch->on_reconnect = on_reconnect;
    watch->stopped = stopped;
    watch->arg = follow;
}

int sl_follow_end(struct sl_follow *follow, enum sl_status status, const struct sl_error *err) {
    hide_progress(follow);
    if (follow->output_failed) { // if the job was cancelled, this is the reason
        fprintf(follow->err, "sluice %s: standard output cannot be written\n", follow->command);
        return SL_EXIT_FAILED;
    }
    if (status != SL_OK) {
        if (follow->answer_shown) {
            fputc('\n', follow->out);
            fflush(follow->out);
        }
        return follow->coordinator ? sl_tool_complain_of(follow->coordinator, follow->command, err)
                                   : sl_tool_complain(follow->command, err);
    }
    return follow->exit_code;
}

// Prints slots of the layers as runs of equal ones: "0-3: 512; 4: 410 (380-512)".
static void print_layers(const Sluice__V1__Statistics *s, FILE *file) {
    size_t n = s->n_slots_min;
    if (n == 0 || s->n_slots_max != n || s->n_slots_mean != n) {
        return;
    }
    fprintf(file, "layers      ");
    for (size_t begin = 0, end; begin < n; begin = end) {
        for (end = begin + 1; end < n && s->slots_min[end] == s->slots_min[begin] &&
                              s->slots_max[end] == s->slots_max[begin] && s->slots_mean[end] == s->slots_mean[begin];
             end++) {
        }
        fprintf(file, "%s %zu", begin > 0 ? ";" : "", begin);
        if (end > begin + 1) {
            fprintf(file, "-%zu", end - 1);
        }
        fprintf(file, ": %.0f", (double)s->slots_mean[begin]);
        if (s->slots_min[begin] != s->slots_max[begin]) {
            fprintf(file, " (%d-%d)", s->slots_min[begin], s->slots_max[begin]);
        }
    }
    fprintf(file, " slots at the end\n");
}

// Prints "3.1% (7.9% in layer 4)": the mean over layers, and the worst layer.
static void print_error(const char *what, const float *errors, size_t n, FILE *file) {
    double sum = 0;
    size_t worst = 0;
    for (size_t l = 0; l < n; l++) {
        sum += (double)errors[l];
        worst = errors[l] > errors[worst] ? l : worst;
    }
    fprintf(file, "%s %.2f%%", what, 100 * sum / (double)n);
    if (errors[worst] > 0) {
        fprintf(file, " (%.2f%% in layer %zu)", 100 * (double)errors[worst], worst);
    }
}

static void print_errors(const Sluice__V1__ErrorEstimates *errors, FILE *file) {
    size_t n = errors->n_evicted_attention;
    if (n == 0 || errors->n_key_error != n || errors->n_value_error != n) {
        return;
    }
    print_error("errors       evicted attention", errors->evicted_attention, n, file);
    print_error("; quantization of K", errors->key_error, n, file);
    print_error(", of V", errors->value_error, n, file);
    fputc('\n', file);
}

static void print_formats(const Sluice__V1__KvBytes *bytes, FILE *file) {
    const struct {
        const char *name;
        int64_t bytes;
    } formats[] = {
#define X(name, word, ...) {#word, bytes->word},
        SL_KV_FORMATS(X)
#undef X
    };
    const char *separator = ": ";
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        if (formats[i].bytes > 0) {
            char text[32];
            sl_format_bytes((double)formats[i].bytes, text, sizeof text);
            fprintf(file, "%s%s %s", separator, formats[i].name, text);
            separator = ", ";
        }
    }
}

// Prints slots, and "-" for unknown values: a job that has used a whole stored capsule does not know how many slots it
// has.
static void print_slots(const Sluice__V1__Statistics *s, FILE *file) {
    struct sl_recipe recipe;
    if (s->slots_per_head <= 0) {
        fprintf(file, "slots        -");
    } else if (s->slots_evicted > 0 || sl_recipe_parse(s->recipe, &recipe, NULL) != SL_OK ||
               !sl_recipe_evicts(&recipe)) {
        fprintf(file, "slots        %.0f a head, %lld evicted", s->slots_per_head, (long long)s->slots_evicted);
    } else {
        fprintf(file, "slots        %.0f a head, nothing was evicted: the budget holds the whole prompt",
                s->slots_per_head);
    }
    if (s->slots_merged > 0) {
        fprintf(file, ", %lld of them merged", (long long)s->slots_merged);
    }
    if (s->slots_fetched > 0) {
        fprintf(file, ", %lld fetched", (long long)s->slots_fetched);
    }
    fputc('\n', file);
}

static void print_retrieval(const Sluice__V1__Retrieval *r, FILE *file) {
    char offloaded[32], received[32];
    sl_format_bytes((double)r->offloaded_bytes, offloaded, sizeof offloaded);
    sl_format_bytes((double)r->bytes_received, received, sizeof received);
    fprintf(file, "offloaded    %s sent", offloaded);
    if (r->reused_tokens > 0) {
        fprintf(file, ", %lld tokens were stored already", (long long)r->reused_tokens);
    }
    fprintf(file, "\nretrieval    %lld asks, %s received, %lld rows fetched and %lld kept", (long long)r->asks,
            received, (long long)r->rows_fetched, (long long)r->rows_kept);
    if (r->round_ms > 0) {
        fprintf(file, "; waited %.1f of %.1f ms", r->wait_ms, r->round_ms);
    }
    if (r->probes > 0) {
        fprintf(file, "; recall of predictions %.3f, %lld asked exactly", r->recall, (long long)r->exact);
    }
    fputc('\n', file);
    if (r->fallbacks > 0 || r->replica_asks > 0) {
        fprintf(file,
                "             %lld layers of steps WITHOUT what the store should have sent, %lld asked of a replica\n",
                (long long)r->fallbacks, (long long)r->replica_asks);
    }
}

static const char *ms_text(double ms, const char *format, char *buf, size_t buf_bytes) {
    int n = ms > 0 ? snprintf(buf, buf_bytes, format, ms) : 0;
    return n > 0 ? buf : "-";
}
static const char *bytes_text(int64_t bytes, char *buf, size_t buf_bytes) {
    return bytes > 0 ? sl_format_bytes((double)bytes, buf, buf_bytes) : "-";
}

static void print_prompt(const Sluice__V1__Statistics *s, FILE *file) {
    fprintf(file, "prompt       %lld tokens", (long long)s->n_prompt_tokens);
    if (s->prefill_ms > 0 || s->capsule_bytes > 0 || s->n_reused_tokens > 0) {
        const char *why = sl_not_cached_word(s->not_cached);
        fprintf(file, ", %lld of them reused%s%s%s, %lld read", (long long)s->n_reused_tokens,
                why ? " (not cached: " : "", why ? why : "", why ? ")" : "",
                (long long)(s->n_prompt_tokens - s->n_reused_tokens));
    }
    if (sl_not_joined_word(s->not_joined)) {
        fprintf(file, "\ndocuments    read as one text (not joined: %s)", sl_not_joined_word(s->not_joined));
    }
    char small[32], large[32];
    fprintf(file, "\ncapsule      %s instead of %s", bytes_text(s->capsule_bytes, small, sizeof small),
            bytes_text(s->full_bytes, large, sizeof large));
    if (s->capsule_bytes > 0 && s->full_bytes > s->capsule_bytes) {
        fprintf(file, ": %.1f times smaller", (double)s->full_bytes / (double)s->capsule_bytes);
    } else if (s->capsule_bytes > s->full_bytes) {
        fprintf(file, ": whole pages of %d slots", SL_PAGE_SLOTS);
    }
    fprintf(file, "%s%s\n", s->transport[0] == '\0' ? "" : ships(s) ? ", by " : ", ships ", s->transport);
}

static void print_kept(const Sluice__V1__Statistics *s, FILE *file) {
    const struct {
        const char *of, *word;
    } copies[] = {{"the prompt", sl_kept_word(s->kept)}, {"its beginning", sl_kept_word(s->kept_state)}};
    const char *separator = "kept         ";
    for (size_t i = 0; i < sizeof copies / sizeof copies[0]; i++) {
        const char *word = copies[i].word;
        if (word) {
            bool there = strcmp(word, "stored") == 0, comes = strcmp(word, "pending") == 0;
            fprintf(file, "%s%s: %s%s", separator, copies[i].of,
                    there   ? "in a store"
                    : comes ? "on its way to a store"
                            : "no, ",
                    there || comes ? "" : word);
            separator = "; ";
        }
    }
    fputs(separator[0] == ';' ? "\n" : "", file);
}

static void print_sampling(const Sluice__V1__Sampling *s, FILE *file) {
    const char *separator = "sampling     ";
    if (s->temperature > 0) {
        fprintf(file, "%stemperature %g", separator, (double)s->temperature);
        if (s->top_k > 0) {
            fprintf(file, ", top_k %d", s->top_k);
        }
        if (s->top_p < 1) {
            fprintf(file, ", top_p %g", (double)s->top_p);
        }
        if (s->min_p > 0) {
            fprintf(file, ", min_p %g", (double)s->min_p);
        }
        fprintf(file, ", seed %llu", (unsigned long long)s->seed);
        separator = ", ";
    }
    const struct {
        const char *name;
        float value, neutral;
    } penalties[] = {{"repetition_penalty", s->repetition_penalty, 1},
                     {"frequency_penalty", s->frequency_penalty, 0},
                     {"presence_penalty", s->presence_penalty, 0}};
    for (size_t i = 0; i < sizeof penalties / sizeof *penalties; i++) {
        if (penalties[i].value != penalties[i].neutral) {
            fprintf(file, "%s%s %g", separator, penalties[i].name, (double)penalties[i].value);
            separator = ", ";
        }
    }
    fputs(separator[0] == ',' ? "\n" : "", file);
}

static void print_times(const Sluice__V1__Statistics *s, FILE *file) {
    char ttft[32], tpot[32], total[32];
    fprintf(file, "TTFT         %s", ms_text(s->ttft_ms, "%.0f ms", ttft, sizeof ttft));
    if (s->ttft_ms > 0) {
        fprintf(file, ": queue %.0f, prefill %.0f, ship %.1f", s->queue_ms, s->prefill_ms, s->ship_ms);
        if (s->restore_ms > 0) {
            fprintf(file, ", document back from disk %.0f", s->restore_ms);
        }
    }
    fprintf(file, "\nTPOT         %s, %lld tokens in %s altogether\n",
            ms_text(s->tpot_ms, "%.1f ms", tpot, sizeof tpot), (long long)s->n_output_tokens,
            ms_text(s->total_ms, "%.0f ms", total, sizeof total));
    if (s->retries > 0) {
        fprintf(file, "retries      %d\n", s->retries);
    }
}

void sl_statistics_print(const Sluice__V1__Statistics *s, FILE *file) {
    char small[32], large[32];
    if (s->recipe[0]) { // an older coordinator does not report it
        struct sl_recipe recipe;
        char caution[SL_CAUTION_BYTES] = "";
        bool evicts = sl_recipe_parse(s->recipe, &recipe, NULL) == SL_OK && sl_recipe_evicts(&recipe);
        if (evicts && !sl_recipe_serves_later(&recipe)) {
            strcpy(caution, "those in the prompt; later ones may find nothing");
        } else if (evicts) {
            sl_recipe_caution(s->recipe, s->n_prompt_tokens, caution);
        }
        fprintf(file, "recipe       %s\n", s->recipe);
        fprintf(file, caution[0] ? "questions    %s\n" : "%s", caution);
    }
    if (s->sampling) {
        print_sampling(s->sampling, file);
    }
    print_prompt(s, file);
    print_kept(s, file);
    print_slots(s, file);
    print_layers(s, file);
    if (s->errors) {
        print_errors(s->errors, file);
    }
    fprintf(file, "resident KV  prefill %s%s, decode %s", bytes_text(s->prefill_peak_bytes, small, sizeof small),
            s->prefill_peak_bytes > 0 ? " at most" : "", bytes_text(s->decode_resident_bytes, large, sizeof large));
    if (s->kv_bytes) {
        print_formats(s->kv_bytes, file);
    }
    fputc('\n', file);
    if (s->retrieval) {
        print_retrieval(s->retrieval, file);
    }
    print_times(s, file);
}
