// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: `sluice train-heads`: trains the retaining heads of a model (Locret) and writes them beside it.
 *
 * Design: makes and reads prompts, takes steps, writes heads. A run that is stopped, by Ctrl-C or by a kill, leaves a
 *         checkpoint at most a minute old. The same command finds it and continues to the same bits as an
 *         uninterrupted run.
 */
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "client/cli/message_json.h"
#include "client/cli/progress.h"
#include "client/cli/tool.h"
#include "lab/picture.h"
#include "lab/train/example_pool.h"
#include "lab/train/heads_file.h"
#include "lab/train/train.h"

#define CHUNK             512 // tokens per call
#define REDRAW_MS         100
#define RECENT_STEPS      25   // steps that a report covers
#define INITIALIZER_RANGE 0.02 // from published models with such heads
#define BETA1             0.9  // the paper's
#define BETA2             0.95
#define WEIGHT_DECAY      0.01 // PyTorch's defaults, which the paper's code keeps
#define EPSILON           1e-8

struct train_config {
    struct sl_tool_config tool;
    const char *model, *device, *data, *checkpoint, *out, *png, *dtype;
    struct sl_option_list tasks, texts;
    int64_t hidden, steps, warm_up, batch, prompts, max_tokens, seed, memory, save_ms, every, threads;
    double lr, smooth, clip;
};

#define OPTION(field) SL_FIELD(train_config, field)
static const struct sl_option options[] = {
    SL_MODEL_OPTION(train_config, model, NULL),
    {"data", 0, SL_OPTION_STRING, NULL, "FILE", "prompts: {\"prompt\": text, \"answer\": text} a line", OPTION(data), 0,
     0},
    {"task", 0, SL_OPTION_LIST, NULL, "NAME[:TOKENS]",
     "prompts of a synthetic task, of so many tokens (1024), or of MIN-MAX; \"all\": of every task that fits. May be "
     "given "
     "several "
     "times: prompts come by turns",
     OPTION(tasks), 0, 0},
    {"text", 0, SL_OPTION_LIST, NULL, "FILE",
     "what tasks hide facts in; may be given several times. Without: the licences of this system", OPTION(texts), 0, 0},
    {"hidden", 0, SL_OPTION_INT, "1024", "R", "width of a head", OPTION(hidden), 1, 1 << 16},
    {"steps", 0, SL_OPTION_INT, "3000", "N",
     "0: write the heads as they are before training, to compare trained ones with; no prompt is read, --out is needed",
     OPTION(steps), 0, 1 << 28},
    {"warm-up", 0, SL_OPTION_INT, "-1", "N", "the rate rises for so many steps, then falls; -1: two thirds of them",
     OPTION(warm_up), -1, 1 << 28},
    {"batch", 0, SL_OPTION_INT, "1", "N", "prompts a step", OPTION(batch), 1, 1 << 20},
    {"prompts", 0, SL_OPTION_INT, "0", "N", "read so many once and walk through them; 0: new ones for every step",
     OPTION(prompts), 0, 1 << 28},
    {"memory", 0, SL_OPTION_SIZE, "4G", "SIZE", "that --prompts may take", OPTION(memory), 0, 0},
    {"lr", 0, SL_OPTION_FLOAT, "5e-4", "RATE", "of learning, at its highest", OPTION(lr), 1e-12, 1e3},
    {"smooth", 0, SL_OPTION_FLOAT, "0.0025", "WEIGHT", "of the smoothness loss", OPTION(smooth), 0, 1e6},
    {"clip", 0, SL_OPTION_FLOAT, "0.5", "G", "gradients are cut to -G..G; 0: they are not", OPTION(clip), 0, 1e6},
    {"max-tokens", 0, SL_OPTION_INT, "10240", "N", "longer prompts lose their beginning", OPTION(max_tokens), 8,
     1 << 24},
    {"seed", 0, SL_OPTION_INT, "0", "N", "of prompts and first parameters", OPTION(seed), 0, 0},
    {"out", 'o', SL_OPTION_STRING, NULL, "FILE", "where to write (default: " SL_HEADS_FILE " in the model's folder)",
     OPTION(out), 0, 0},
    {"dtype", 0, SL_OPTION_STRING, "bf16", "TYPE", "of the file: bf16, f16 or f32", OPTION(dtype), 0, 0},
    {"checkpoint", 0, SL_OPTION_STRING, NULL, "FILE",
     "to stop and go on by; removed in the end (default: the output's name and .checkpoint)", OPTION(checkpoint), 0, 0},
    {"save-every", 0, SL_OPTION_DURATION, "60s", "TIME", "between two checkpoints", OPTION(save_ms), 1, 1e9},
    {"png", 0, SL_OPTION_STRING, NULL, "FILE", "draw loss and overlap by step", OPTION(png), 0, 0},
    {"every", 0, SL_OPTION_INT, "25", "N", "report every so many steps, where there is no terminal", OPTION(every), 1,
     1 << 28},
    {"threads", 0, SL_OPTION_INT, "0", "N", "0 is one per processor", OPTION(threads), 0, 1024},
    SL_DEVICE_OPTION(train_config, device),
    SL_LOCAL_TOOL_OPTIONS,
};

static const struct sl_program program = {
    .name = "sluice train-heads",
    .usage = "--model DIR (--data FILE | --task NAME[:TOKENS])... [options]",
    .summary =
        "Train the retaining heads of a model (Locret), which score=cis ranks slots by, and write DIR/" SL_HEADS_FILE
        ".\nThe model is only read. Defaults are the paper's, but that it has one data set and no tasks.",
    .epilog = "Heads learn from prompts whose answers are known: the largest attention logit that a row of the answer "
              "gives a\n"
              "token is what they are to say of it. \"overlap\" is how much of the best tenth they find.\n"
              "A run that was stopped goes on when the same command is given again.\n" SL_EXIT_CODES_HELP,
    SL_OPTIONS(options),
};

#define MAX_FACTS 16

struct training {
    const struct train_config *config;
    enum sl_dtype dtype;
    char out[PATH_MAX], checkpoint[PATH_MAX];
    int64_t max_tokens;
    struct sl_signals signals;
    struct sl_eval_model model;
    struct sl_training_prompts *prompts;
    struct sl_example_pool *pool;
    struct sl_heads *heads;
    struct sl_trainer trainer;
    struct sl_trainer_fact facts[MAX_FACTS];
    size_t n_facts;
    // For reports: values since this process started stepping.
    int width; // of the terminal; 0: no terminal
    int64_t begin_ns, begin_step, n_tokens, drawn_ns, saved_ns;
};

// --- set-up ----------------------------------------------------------------------------------------------------------

static enum sl_status name_files(struct training *t, struct sl_error *err) {
    const struct train_config *c = t->config;
    int n = c->out ? snprintf(t->out, sizeof t->out, "%s", c->out)
                   : snprintf(t->out, sizeof t->out, "%s/%s", c->model, SL_HEADS_FILE);
    int m = c->checkpoint ? snprintf(t->checkpoint, sizeof t->checkpoint, "%s", c->checkpoint)
                          : snprintf(t->checkpoint, sizeof t->checkpoint, "%s.checkpoint", t->out);
    SL_FAIL_IF(n >= PATH_MAX || m >= PATH_MAX, err, SL_ERR_INVALID, "%.200s...: the path is too long", t->out);
    return SL_OK;
}

static enum sl_status parse_dtype(const char *name, enum sl_dtype *dtype_out, struct sl_error *err) {
    static const char *const names[] = {[SL_F32] = "f32", [SL_F16] = "f16", [SL_BF16] = "bf16"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(name, names[i]) == 0) {
            *dtype_out = (enum sl_dtype)i;
            return SL_OK;
        }
    }
    return sl_fail(err, SL_ERR_INVALID, "--dtype %s: expected bf16, f16 or f32", name);
}

static enum sl_status check_config(struct training *t, struct sl_error *err) {
    const struct train_config *c = t->config;
    SL_FAIL_IF(c->prompts > 0 && c->prompts < c->batch, err, SL_ERR_INVALID,
               "--prompts %" PRId64 " is below --batch %" PRId64, c->prompts, c->batch);
    if (c->steps == 0 && c->out == NULL) { // untrained heads would replace trained ones
        return sl_fail(err, SL_ERR_INVALID, "--steps 0 writes untrained heads: --out FILE says where");
    }
    SL_FAIL_IF(c->steps == 0 && c->png, err, SL_ERR_INVALID, "--png: there is no curve of --steps 0");
    SL_TRY(parse_dtype(c->dtype, &t->dtype, err));
    return sl_picture_check(c->png, err);
}

static enum sl_status check_stopped(struct training *t, struct sl_error *err) {
    return sl_signals_received(&t->signals) > 0 ? sl_fail(err, SL_ERR_CANCELLED, "stopped") : SL_OK;
}

static enum sl_status report_reading(void *arg, int64_t done, int64_t total) {
    struct training *t = arg;
    if (t->width > 0 && sl_now_ns() - t->drawn_ns > REDRAW_MS * SL_NS_PER_MS) {
        struct sl_progress progress = {.phase = "reading prompts", .done = done, .total = total};
        sl_progress_draw(&progress, t->width, stderr);
        t->drawn_ns = sl_now_ns();
    }
    return sl_signals_received(&t->signals) > 0 ? SL_ERR_CANCELLED : SL_OK;
}

static enum sl_status open_pool(struct training *t, struct sl_error *err) {
    const struct train_config *c = t->config;
    struct sl_training_prompts_config prompts = {.tokenizer = t->model.runtime.tokenizer,
                                                 .data = c->data,
                                                 .tasks = c->tasks,
                                                 .texts = c->texts,
                                                 .max_tokens = t->max_tokens,
                                                 .seed = (uint64_t)c->seed};
    SL_TRY(sl_training_prompts_open(&prompts, &t->prompts, err));
    struct sl_example_pool_config pool = {.model = &t->model,
                                          .prompts = t->prompts,
                                          .chunk = CHUNK,
                                          .n_prompts = c->prompts,
                                          .memory_bytes = (size_t)c->memory,
                                          .seed = (uint64_t)c->seed,
                                          .progress_fn = report_reading,
                                          .arg = t};
    enum sl_status status = sl_example_pool_open(&pool, &t->pool, err);
    if (t->width > 0) {
        sl_progress_clear(stderr);
    }
    if (status == SL_ERR_CANCELLED) {
        return check_stopped(t, err);
    }
    if (status == SL_OK && c->prompts > 0 && !c->tool.json) {
        char bytes[32];
        fprintf(stderr, "%" PRId64 " prompts of %" PRId64 " tokens together have been read: %s\n", c->prompts,
                sl_example_pool_tokens(t->pool),
                sl_format_bytes((double)sl_example_pool_bytes(t->pool), bytes, sizeof bytes));
    }
    return status;
}

static void add_fact(struct training *t, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void add_fact(struct training *t, const char *name, const char *format, ...) {
    struct sl_trainer_fact *fact = &t->facts[t->n_facts++];
    va_list list;
    va_start(list, format);
    fact->name = name;
    vsnprintf(fact->value, sizeof fact->value, format, list);
    va_end(list);
}

// Lists everything that determines a run's bits. A resumed run may use another number of threads, and write another
// type.
static enum sl_status list_facts(struct training *t, struct sl_error *err) {
    const struct train_config *c = t->config;
    uint64_t fingerprint;
    SL_TRY(sl_model_fingerprint(c->model, SL_WEIGHT_STORED, &fingerprint, err));
    add_fact(t, "--model", "%016" PRIx64, fingerprint);
    add_fact(t, "--hidden", "%" PRId64, c->hidden);
    add_fact(t, "--steps", "%" PRId64, c->steps);
    add_fact(t, "--warm-up", "%" PRId64, t->trainer.config.warm_up);
    add_fact(t, "--batch", "%" PRId64, c->batch);
    add_fact(t, "--prompts", "%" PRId64, c->prompts);
    add_fact(t, "--lr", "%.17g", c->lr);
    add_fact(t, "--smooth", "%.17g", c->smooth);
    add_fact(t, "--clip", "%.17g", c->clip);
    add_fact(t, "--max-tokens", "%" PRId64, t->max_tokens);
    add_fact(t, "--seed", "%" PRId64, c->seed);
    add_fact(t, "--data, --task and --text of digest", "%016" PRIx64, sl_example_pool_digest(t->pool));
    return SL_OK;
}

static enum sl_status create_heads(struct training *t, struct sl_error *err) {
    struct sl_heads_shape shape = sl_heads_shape_of(t->model.runtime.config, (int)t->config->hidden);
    return sl_heads_create(&shape, t->model.runtime.ops, t->model.runtime.stream, INITIALIZER_RANGE,
                           (uint64_t)t->config->seed, &t->heads, err);
}

static enum sl_status open_trainer(struct training *t, struct sl_error *err) {
    const struct train_config *c = t->config;
    struct sl_trainer_config config = {.n_steps = c->steps,
                                       .warm_up = c->warm_up >= 0 ? c->warm_up : (c->steps * 2 + 2) / 3,
                                       .batch = (int)c->batch,
                                       .smooth = c->smooth,
                                       .adamw = {.lr = c->lr,
                                                 .beta1 = BETA1,
                                                 .beta2 = BETA2,
                                                 .eps = EPSILON,
                                                 .weight_decay = WEIGHT_DECAY,
                                                 .clip = c->clip}};
    SL_TRY(sl_trainer_init(&t->trainer, &config, t->heads, err));
    return list_facts(t, err);
}

// Continues from a checkpoint, if there is one.
static enum sl_status find_checkpoint(struct training *t, struct sl_error *err) {
    enum sl_status status = sl_trainer_load(&t->trainer, t->checkpoint, t->facts, t->n_facts, err);
    if (status == SL_OK && !t->config->tool.json) {
        fprintf(stderr, "going on from step %" PRId64 " of %" PRId64 " (%s)\n", sl_trainer_step_number(&t->trainer),
                t->config->steps, t->checkpoint);
    }
    return status == SL_ERR_NOT_FOUND ? SL_OK : status;
}

static enum sl_status open_model(struct training *t, struct sl_error *err) {
    const struct train_config *c = t->config;
    struct sl_eval_model_config model = {.dir = c->model,
                                         .device = c->device,
                                         .threads = (int)c->threads,
                                         .max_rows = CHUNK,
                                         .cache_tokens = c->max_tokens,
                                         .tokenizer = true};
    SL_TRY(sl_eval_model_open(&model, &t->model, err));
    SL_TRY(name_files(t, err));
    return create_heads(t, err);
}

static enum sl_status open_run(struct training *t, struct sl_error *err) {
    int64_t most = t->model.runtime.config->max_positions, asked = t->config->max_tokens;
    t->max_tokens = asked < most ? asked : most;
    SL_TRY(open_pool(t, err));
    SL_TRY(open_trainer(t, err));
    return find_checkpoint(t, err);
}

static void tear_down(struct training *t) {
    sl_trainer_cleanup(&t->trainer);
    sl_heads_destroy(&t->heads);
    sl_example_pool_close(&t->pool);
    sl_training_prompts_close(&t->prompts);
    sl_eval_model_close(&t->model);
}

// --- reports ---------------------------------------------------------------------------------------------------------

// Writes "4m 10s".
static void format_time(double seconds, char *buf, size_t buf_bytes) {
    int64_t s = (int64_t)(seconds + 0.5);
    if (s >= 3600) {
        snprintf(buf, buf_bytes, "%" PRId64 "h %" PRId64 "m", s / 3600, s / 60 % 60);
    } else if (s >= 60) {
        snprintf(buf, buf_bytes, "%" PRId64 "m %" PRId64 "s", s / 60, s % 60);
    } else {
        snprintf(buf, buf_bytes, "%" PRId64 "s", s);
    }
}

static void report(struct training *t) {
    const struct train_config *c = t->config;
    int64_t step = sl_trainer_step_number(&t->trainer), now = sl_now_ns();
    bool on_terminal = t->width > 0 && !c->tool.json, is_last = step == c->steps;
    bool due = on_terminal ? now - t->drawn_ns > REDRAW_MS * SL_NS_PER_MS : step % c->every == 0 || is_last;
    if (!due) {
        return;
    }
    double seconds = (double)(now - t->begin_ns) / SL_NS_PER_S;
    double tokens = (double)t->n_tokens / seconds, rate = (double)(step - t->begin_step) / seconds;
    struct sl_heads_loss loss = sl_trainer_recent(&t->trainer, RECENT_STEPS);
    char left[32];
    format_time((double)(c->steps - step) / rate, left, sizeof left);
    if (c->tool.json) {
        json_t *line = json_pack("{s:I, s:I, s:f, s:f, s:f, s:f}", "step", (json_int_t)step, "steps",
                                 (json_int_t)c->steps, "smooth_l1", loss.smooth_l1, "smoothness", loss.smoothness,
                                 "overlap", loss.overlap, "tokens_per_s", tokens);
        sl_json_print(line, JSON_COMPACT | JSON_REAL_PRECISION(6), stdout);
    } else if (on_terminal) {
        struct sl_progress progress = {.phase = "step", .done = step, .total = c->steps, .unit = ""};
        snprintf(progress.note, sizeof progress.note, "loss %.2f  overlap %.2f  %.0f tokens/s  %s left", loss.smooth_l1,
                 loss.overlap, tokens, left);
        sl_progress_draw(&progress, t->width, stderr);
        t->drawn_ns = now;
    } else {
        fprintf(stderr, "step %" PRId64 " of %" PRId64 ": loss %.4f, overlap %.3f, %.0f tokens/s, %s left\n", step,
                c->steps, loss.smooth_l1, loss.overlap, tokens, left);
    }
}

static void report_end(const struct training *t) {
    struct sl_heads_loss loss = sl_trainer_recent(&t->trainer, RECENT_STEPS);
    if (t->config->tool.json) {
        json_t *line = json_pack("{s:o, s:f, s:f, s:f}", "path", sl_text_json(t->out), "smooth_l1", loss.smooth_l1,
                                 "smoothness", loss.smoothness, "overlap", loss.overlap);
        sl_json_print(line, JSON_COMPACT | JSON_REAL_PRECISION(6), stdout);
    } else {
        printf("written to %s: smooth-L1 %.4f, overlap %.3f over the last steps\n", t->out, loss.smooth_l1,
               loss.overlap);
    }
}

// --- training --------------------------------------------------------------------------------------------------------

static enum sl_status save(struct training *t, struct sl_error *err) {
    t->saved_ns = sl_now_ns();
    return sl_trainer_save(&t->trainer, t->checkpoint, t->facts, t->n_facts, err);
}

static enum sl_status take_steps(struct training *t, struct sl_error *err) {
    struct sl_example_source source = sl_example_pool_source(t->pool);
    enum sl_status status = SL_OK;
    t->begin_ns = t->saved_ns = sl_now_ns();
    t->begin_step = sl_trainer_step_number(&t->trainer);
    while (status == SL_OK && !sl_trainer_done(&t->trainer)) {
        status = sl_trainer_step(&t->trainer, &source, err);
        if (status != SL_OK) {
            break;
        }
        t->n_tokens += t->trainer.n_tokens;
        report(t);
        bool stopped = sl_signals_received(&t->signals) > 0 && !sl_trainer_done(&t->trainer);
        if (stopped || sl_now_ns() - t->saved_ns >= t->config->save_ms * SL_NS_PER_MS) {
            status = save(t, err);
        }
        if (stopped && status == SL_OK) {
            status = sl_fail(err, SL_ERR_CANCELLED, "stopped behind step %" PRId64 "; the same command goes on from %s",
                             sl_trainer_step_number(&t->trainer), t->checkpoint);
        }
    }
    if (t->width > 0) {
        sl_progress_clear(stderr);
    }
    return status;
}

static enum sl_status draw_curve(const struct training *t, struct sl_error *err) {
    json_t *losses = json_array(), *overlaps = json_array();
    for (int64_t i = 0; i < sl_trainer_step_number(&t->trainer); i++) {
        json_array_append_new(losses, json_real(t->trainer.curve.smooth_l1[i]));
        json_array_append_new(overlaps, json_real(t->trainer.curve.overlap[i]));
    }
    json_t *data =
        json_pack("{s:o, s:o, s:o}", "title", sl_text_json(t->out), "smooth_l1", losses, "overlap", overlaps);
    return sl_picture_draw("training", t->config->png, data, err);
}

static enum sl_status finish(struct training *t, struct sl_error *err) {
    SL_TRY(sl_heads_write(t->heads, t->out, t->dtype, err));
    if (t->config->png) {
        SL_TRY(draw_curve(t, err));
    }
    unlink(t->checkpoint); // it may not exist
    report_end(t);
    return SL_OK;
}

// Trains new heads for a model and writes them to their file.
static enum sl_status run(struct training *t, struct sl_error *err) {
    SL_TRY(open_run(t, err));
    SL_TRY(take_steps(t, err));
    return finish(t, err);
}

static enum sl_status write_untrained(struct training *t, struct sl_error *err) {
    enum sl_status status = sl_heads_write(t->heads, t->out, t->dtype, err);
    if (status == SL_OK && t->config->tool.json) {
        json_t *line = json_pack("{s:o}", "path", sl_text_json(t->out));
        sl_json_print(line, JSON_COMPACT, stdout);
    } else if (status == SL_OK) {
        printf("written to %s: untrained heads of seed %" PRId64 "\n", t->out, t->config->seed);
    }
    return status;
}

static enum sl_status train(void *arg, struct sl_error *err) {
    const struct train_config *config = arg;
    struct training t = {.config = config, .width = sl_terminal_width(STDERR_FILENO)};
    SL_TRY(check_config(&t, err));
    SL_TRY(sl_signals_init(&t.signals, err));
    enum sl_status status = open_model(&t, err);
    SL_THEN(status, config->steps > 0 ? run(&t, err) : write_untrained(&t, err));
    tear_down(&t);
    sl_signals_cleanup(&t.signals);
    return status;
}

SL_COMMAND_RUN(sl_command_train_heads, train_config, program, train)
