// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: `sluice train-heads`: trains the retaining heads of a model (Locret) and writes them beside it.
 *
 * Design: a Python process (lab/sluice_eval/sluice_eval/train_heads.py) directs the run: it makes prompts, decides what is read
 *         and learned, keeps checkpoints, writes the heads and reports. This process computes what it asks for, request by
 *         request, and owns the model, the examples and the heads, whose memory both processes map.
 */
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "client/cli/message_json.h"
#include "client/cli/tool.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "lab/eval_model.h"
#include "lab/picture.h"
#include "lab/train/director.h"
#include "lab/train/example.h"
#include "lab/train/train.h"

#define CHUNK             512  // tokens per call
#define INITIALIZER_RANGE 0.02 // from published models with such heads
#define BETA1             0.9  // the paper's
#define BETA2             0.95
#define WEIGHT_DECAY      0.01 // PyTorch's defaults, which the paper's code keeps
#define EPSILON           1e-8
#define HEADS_FILE        "retaining_heads.safetensors" // beside the model

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
     "prompts of a synthetic task with TOKENS or MIN-MAX tokens (default 1024); \"all\": of every task that fits. May "
     "be given several times: prompts alternate",
     OPTION(tasks), 0, 0},
    {"text", 0, SL_OPTION_LIST, NULL, "FILE",
     "text in which tasks hide facts; may be given several times. Default: the licenses of this system", OPTION(texts),
     0, 0},
    {"hidden", 0, SL_OPTION_INT, "1024", "R", "width of a head", OPTION(hidden), 1, 1 << 16},
    {"steps", 0, SL_OPTION_INT, "3000", "N",
     "0: write the heads as they are before training, to compare trained ones with; no prompt is read, --out is needed",
     OPTION(steps), 0, 1 << 28},
    {"warm-up", 0, SL_OPTION_INT, "-1", "N",
     "steps during which the learning rate rises; then it falls; -1: two thirds of all steps", OPTION(warm_up), -1,
     1 << 28},
    {"batch", 0, SL_OPTION_INT, "1", "N", "prompts of a step", OPTION(batch), 1, 1 << 20},
    {"prompts", 0, SL_OPTION_INT, "0", "N",
     "read N prompts once, and use them again and again; 0: new prompts for every step", OPTION(prompts), 0, 1 << 28},
    {"memory", 0, SL_OPTION_SIZE, "4G", "SIZE", "memory that --prompts may take", OPTION(memory), 0, 0},
    {"lr", 0, SL_OPTION_FLOAT, "5e-4", "RATE", "highest learning rate", OPTION(lr), 1e-12, 1e3},
    {"smooth", 0, SL_OPTION_FLOAT, "0.0025", "WEIGHT", "weight of the smoothness loss", OPTION(smooth), 0, 1e6},
    {"clip", 0, SL_OPTION_FLOAT, "0.5", "G", "clip gradients to -G..G; 0: do not clip", OPTION(clip), 0, 1e6},
    {"max-tokens", 0, SL_OPTION_INT, "10240", "N", "most tokens of a prompt; longer ones lose their beginning",
     OPTION(max_tokens), 8, 1 << 24},
    {"seed", 0, SL_OPTION_INT, "0", "N", "seed of prompts and initial parameters", OPTION(seed), 0, 0},
    {"out", 'o', SL_OPTION_STRING, NULL, "FILE", "where to write (default: " HEADS_FILE " in the model's folder)",
     OPTION(out), 0, 0},
    {"dtype", 0, SL_OPTION_STRING, "bf16", "TYPE", "type of the numbers in the file: bf16, f16 or f32", OPTION(dtype),
     0, 0},
    {"checkpoint", 0, SL_OPTION_STRING, NULL, "FILE",
     "checkpoint to resume from after a stop, removed at the end. Default: the output's name and .checkpoint",
     OPTION(checkpoint), 0, 0},
    {"save-every", 0, SL_OPTION_DURATION, "60s", "TIME", "time between two checkpoints", OPTION(save_ms), 1, 1e9},
    {"png", 0, SL_OPTION_STRING, NULL, "FILE", "draw loss and overlap by step", OPTION(png), 0, 0},
    {"every", 0, SL_OPTION_INT, "25", "N", "steps between two reports, if the output is not a terminal", OPTION(every),
     1, 1 << 28},
    {"threads", 0, SL_OPTION_INT, "0", "N", "threads; 0: one for each processor", OPTION(threads), 0, 1024},
    SL_DEVICE_OPTION(train_config, device),
    SL_LOCAL_TOOL_OPTIONS,
};

static const struct sl_program program = {
    .name = "sluice train-heads",
    .usage = "--model DIR (--data FILE | --task NAME[:TOKENS])... [options]",
    .summary =
        "Train the retaining heads of a model (Locret), which score=cis ranks slots by, and write DIR/" HEADS_FILE
        ".\nThe model is only read. Defaults are the paper's, but that it has one data set and no tasks.",
    .epilog = "Heads learn from prompts whose answers are known: the largest attention logit that a row of the answer "
              "gives a\n"
              "token is what they are to say of it. \"overlap\" is how much of the best tenth they find.\n"
              "The same command resumes a run that was stopped.\n" SL_EXIT_CODES_HELP,
    SL_OPTIONS(options),
};

struct training {
    const struct train_config *config;
    int64_t warm_up, max_tokens; // as the model and the number of steps have them
    struct sl_signals signals;
    struct sl_eval_model model;
    struct sl_heads *heads;
    struct sl_heads_loss loss;   // of the step, so far
    struct sl_example *examples; // [n_examples]; those that are not read are zero
    size_t n_examples, n_allocated;
    struct sl_director director;
};

// --- set-up ----------------------------------------------------------------------------------------------------------

static enum sl_status check_config(const struct train_config *c, struct sl_error *err) {
    SL_FAIL_IF(c->prompts > 0 && c->prompts < c->batch, err, SL_ERR_INVALID,
               "--prompts %" PRId64 " is below --batch %" PRId64, c->prompts, c->batch);
    if (c->steps == 0 && c->out == NULL) { // untrained heads would replace trained ones
        return sl_fail(err, SL_ERR_INVALID, "--steps 0 writes untrained heads: --out FILE says where");
    }
    SL_FAIL_IF(c->steps == 0 && c->png, err, SL_ERR_INVALID, "--png: there is no curve of --steps 0");
    SL_FAIL_IF(strcmp(c->dtype, "bf16") != 0 && strcmp(c->dtype, "f16") != 0 && strcmp(c->dtype, "f32") != 0, err,
               SL_ERR_INVALID, "--dtype %s: expected bf16, f16 or f32", c->dtype);
    return sl_picture_check(c->png, err);
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
    const struct sl_runtime *runtime = &t->model.runtime;
    struct sl_heads_shape shape = sl_heads_shape_of(runtime->config, (int)c->hidden);
    t->warm_up = c->warm_up >= 0 ? c->warm_up : (c->steps * 2 + 2) / 3;
    t->max_tokens = c->max_tokens < runtime->config->max_positions ? c->max_tokens : runtime->config->max_positions;
    return sl_heads_create(&shape, runtime->ops, runtime->stream, INITIALIZER_RANGE, (uint64_t)c->seed, &t->heads, err);
}

static json_t *list_json(const struct sl_option_list *list) {
    json_t *items = json_array();
    for (int i = 0; i < list->n; i++) {
        json_array_append_new(items, sl_text_json(list->items[i]));
    }
    return items;
}

// Returns the heads' layout in their memory.
static json_t *heads_json(const struct training *t) {
    const struct sl_heads_shape *shape = sl_heads_get_shape(t->heads);
    const struct sl_heads_state *state = sl_heads_get_state(t->heads);
    json_t *offsets = json_array();
    for (int l = 0; l < shape->n_layers; l++) {
        json_array_append_new(offsets, json_pack("[I, I]", (json_int_t)sl_heads_w1_offset(shape, l),
                                                 (json_int_t)sl_heads_w2_offset(shape, l)));
    }
    return json_pack("{s:i, s:I, s:i, s:i, s:o}", "memory", state->memory, "n", (json_int_t)state->n, "columns",
                     shape->n_columns, "kv_heads", shape->n_kv_heads, "offsets", offsets);
}

// Returns all that the Python process needs: the options, and facts of the model.
static json_t *options_json(const struct training *t, uint64_t fingerprint) {
    const struct train_config *c = t->config;
    json_t *all =
        json_pack("{s:o, s:o, s:o, s:I, s:s, s:b, s:b, s:o}", "data", c->data ? sl_text_json(c->data) : json_null(),
                  "tasks", list_json(&c->tasks), "texts", list_json(&c->texts), "seed", (json_int_t)c->seed, "dtype",
                  c->dtype, "draw", c->png != NULL, "json", c->tool.json, "heads", heads_json(t));
    json_t *numbers = json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f}", "hidden", (json_int_t)c->hidden, "steps",
        (json_int_t)c->steps, "warm_up", (json_int_t)t->warm_up, "batch", (json_int_t)c->batch, "prompts",
        (json_int_t)c->prompts, "memory", (json_int_t)c->memory, "max_tokens", (json_int_t)t->max_tokens, "every",
        (json_int_t)c->every, "save_ms", (json_int_t)c->save_ms, "lr", c->lr, "smooth", c->smooth, "clip", c->clip);
    json_object_update(all, numbers);
    json_decref(numbers);
    json_object_set_new(all, "fingerprint", json_sprintf("%016" PRIx64, fingerprint));
    return all;
}

// --- requests --------------------------------------------------------------------------------------------------------

// {"encode": text, "begins": whether a begin token comes first}: its tokens.
static enum sl_status on_encode(struct training *t, const json_t *request, json_t *reply, struct sl_error *err) {
    const json_t *text = json_object_get(request, "encode");
    int32_t *ids = NULL;
    size_t n = 0;
    SL_TRY(sl_tokenizer_encode(t->model.runtime.tokenizer, json_string_value(text), json_string_length(text),
                               json_is_true(json_object_get(request, "begins")), &ids, &n, err));
    json_t *tokens = json_array();
    for (size_t i = 0; i < n; i++) {
        json_array_append_new(tokens, json_integer(ids[i]));
    }
    free(ids);
    json_object_set_new(reply, "tokens", tokens);
    return SL_OK;
}

// {"read": tokens, "prompt": how many of them are the prompt, "at": i}: makes them example i, in place of the one there.
static enum sl_status on_read(struct training *t, const json_t *request, json_t *reply, struct sl_error *err) {
    const json_t *ids = json_object_get(request, "read");
    size_t n = json_array_size(ids), at = (size_t)json_integer_value(json_object_get(request, "at"));
    int32_t *tokens = calloc(n + 1, sizeof *tokens);
    (void)reply;
    while (at >= t->n_examples && SL_GROW(t->examples, t->n_examples, t->n_allocated)) {
        t->examples[t->n_examples++] = (struct sl_example){0};
    }
    SL_FAIL_OR(!tokens || at >= t->n_examples, free(tokens), err, SL_ERR_EXHAUSTED, "out of memory");
    for (size_t i = 0; i < n; i++) {
        tokens[i] = (int32_t)json_integer_value(json_array_get(ids, i));
    }
    const struct sl_runtime *runtime = &t->model.runtime;
    const struct sl_teacher teacher = {
        .engine = runtime->engine, .model = runtime->model, .arena = t->model.arena, .chunk = CHUNK};
    sl_example_cleanup(&t->examples[at]);
    enum sl_status status = sl_example_read(
        &teacher, tokens, (int64_t)n, json_integer_value(json_object_get(request, "prompt")), &t->examples[at], err);
    free(tokens);
    return status;
}

// {"learn": i}: adds the gradients of example i, one of the step's batch.
static enum sl_status on_learn(struct training *t, const json_t *request, json_t *reply, struct sl_error *err) {
    size_t at = (size_t)json_integer_value(json_object_get(request, "learn"));
    SL_FAIL_IF(at >= t->n_examples, err, SL_ERR_INTERNAL, "there is no example %zu", at);
    const struct train_config *c = t->config;
    const struct sl_example *example = &t->examples[at];
    enum sl_status status = SL_OK;
    for (int l = 0; l < example->n_layers && status == SL_OK; l++) {
        struct sl_heads_example layer = sl_example_layer(example, l);
        status = sl_heads_backward(t->heads, l, &layer, c->smooth, 1.0 / (double)c->batch, &t->loss, err);
    }
    json_object_set_new(reply, "tokens", json_integer((json_int_t)example->n_tokens));
    return status;
}

// {"step": true}: changes the heads by what the batch has taught. Returns the batch's loss.
static enum sl_status on_step(struct training *t, const json_t *request, json_t *reply, struct sl_error *err) {
    const struct train_config *c = t->config;
    int64_t step = sl_heads_get_state(t->heads)->n_steps;
    (void)request;
    SL_FAIL_IF(!isfinite(t->loss.smooth_l1) || !isfinite(t->loss.smoothness), err, SL_ERR_INVALID,
               "training has diverged: the loss of step %" PRId64 " is %g; use a smaller learning rate", step + 1,
               t->loss.smooth_l1);
    const struct sl_adamw adamw = {.lr = sl_heads_lr(c->lr, step, t->warm_up, c->steps),
                                   .beta1 = BETA1,
                                   .beta2 = BETA2,
                                   .eps = EPSILON,
                                   .weight_decay = WEIGHT_DECAY,
                                   .clip = c->clip};
    sl_heads_step(t->heads, &adamw);
    json_object_set_new(reply, "loss", json_pack("[f, f, f]", t->loss.smooth_l1, t->loss.smoothness, t->loss.overlap));
    t->loss = (struct sl_heads_loss){0};
    return SL_OK;
}

// {"resume": n}: the heads' memory has been set to what it was after n steps.
static enum sl_status on_resume(struct training *t, const json_t *request, json_t *reply, struct sl_error *err) {
    (void)reply, (void)err;
    sl_heads_get_state(t->heads)->n_steps = json_integer_value(json_object_get(request, "resume"));
    return SL_OK;
}

// {"draw": the losses and overlaps of all steps}: draws them into --png.
static enum sl_status on_draw(struct training *t, const json_t *request, json_t *reply, struct sl_error *err) {
    (void)reply;
    return sl_picture_draw("training", t->config->png, json_incref(json_object_get(request, "draw")), err);
}

// {"error": text, "code": exit code}: the run has ended so.
static enum sl_status on_error(struct training *t, const json_t *request, json_t *reply, struct sl_error *err) {
    json_int_t code = json_integer_value(json_object_get(request, "code"));
    enum sl_status status = code == SL_EXIT_USAGE       ? SL_ERR_INVALID
                            : code == SL_EXIT_CANCELLED ? SL_ERR_CANCELLED
                                                        : SL_ERR_IO;
    (void)t, (void)reply;
    return sl_fail(err, status, "%s", json_string_value(json_object_get(request, "error")));
}

static const struct {
    const char *name;
    enum sl_status (*answer)(struct training *t, const json_t *request, json_t *reply, struct sl_error *err);
} requests[] = {{"encode", on_encode}, {"read", on_read}, {"learn", on_learn}, {"step", on_step},
                {"resume", on_resume}, {"draw", on_draw}, {"error", on_error}};

static enum sl_status answer(struct training *t, const json_t *request, struct sl_error *err) {
    json_t *reply = json_object();
    enum sl_status status = sl_fail(err, SL_ERR_INTERNAL, "the Python process asks for what there is not");
    for (size_t i = 0; i < sizeof requests / sizeof requests[0]; i++) {
        if (json_object_get(request, requests[i].name)) {
            status = requests[i].answer(t, request, reply, err);
            break;
        }
    }
    if (status == SL_OK) {
        json_object_set_new(reply, "stopped", json_boolean(sl_signals_received(&t->signals) > 0));
        sl_director_send(&t->director, reply);
    }
    json_decref(reply);
    return status;
}

// Answers until the Python process says that it is done.
static enum sl_status follow(struct training *t, struct sl_error *err) {
    for (;;) {
        json_t *request;
        SL_TRY(sl_director_receive(&t->director, &request, err));
        bool done = json_object_get(request, "done") != NULL;
        enum sl_status status = done ? SL_OK : answer(t, request, err);
        json_decref(request);
        if (done || status != SL_OK) {
            return status;
        }
    }
}

// --- the command -----------------------------------------------------------------------------------------------------

static enum sl_status direct(struct training *t, struct sl_error *err) {
    const struct train_config *c = t->config;
    uint64_t fingerprint;
    char out[PATH_MAX], checkpoint[PATH_MAX];
    int n = c->out ? snprintf(out, sizeof out, "%s", c->out) : snprintf(out, sizeof out, "%s/" HEADS_FILE, c->model);
    int m = c->checkpoint ? snprintf(checkpoint, sizeof checkpoint, "%s", c->checkpoint)
                          : snprintf(checkpoint, sizeof checkpoint, "%s.checkpoint", out);
    SL_FAIL_IF(n >= PATH_MAX || m >= PATH_MAX, err, SL_ERR_INVALID, "%.200s...: the path is too long", out);
    SL_FAIL_IF(c->steps > 0 && !c->data && c->tasks.n == 0, err, SL_ERR_INVALID,
               "--data FILE or --task NAME is needed: prompts whose answers are known");
    SL_TRY(sl_model_fingerprint(c->model, SL_WEIGHT_STORED, &fingerprint, err));
    SL_TRY(sl_director_start(&t->director, out, checkpoint, err));
    json_t *all = options_json(t, fingerprint);
    sl_director_send(&t->director, all);
    json_decref(all);
    return follow(t, err);
}

static enum sl_status train(void *arg, struct sl_error *err) {
    const struct train_config *config = arg;
    struct training t = {.config = config, .director = SL_DIRECTOR_NONE};
    SL_TRY(check_config(config, err));
    SL_TRY(sl_signals_init(&t.signals, err));
    enum sl_status status = open_model(&t, err);
    SL_THEN(status, direct(&t, err));
    sl_director_stop(&t.director);
    for (size_t i = 0; i < t.n_examples; i++) {
        sl_example_cleanup(&t.examples[i]);
    }
    free(t.examples);
    sl_heads_destroy(&t.heads);
    sl_eval_model_close(&t.model);
    sl_signals_cleanup(&t.signals);
    return status;
}

SL_COMMAND_RUN(sl_command_train_heads, train_config, program, train)
