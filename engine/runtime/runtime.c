// SPDX-License-Identifier: Apache-2.0
#include "engine/runtime/transfer.h"

#include "base/log.h"
#include "base/processors.h"
#include "base/thread.h"
#include "engine/runtime/plugin.h"
#include "engine/tensor/cpu/device.h"
#include "engine/tensor/cpu/tiers.h"
#include "engine/tensor/timed/timed.h"

// Opens the teams. Adjacent CPUs belong to one rank: if threads are pinned, ranks fill one NUMA node after the other.
static enum sl_status open_teams(const struct sl_runtime_config *config, struct sl_runtime *r, struct sl_error *err) {
    int n = config->ranks, threads = config->threads > 0 ? config->threads : sl_processors_count();
    threads = threads < n ? n : threads;
    enum sl_status status = SL_OK;
    for (int i = 0; i < n && status == SL_OK; i++) {
        int first = threads * i / n, end = threads * (i + 1) / n;
        struct sl_team **team = i == 0 ? &r->team : &r->others[i];
        status = sl_team_create(end - first, team, err);
        status = status == SL_OK && config->pin ? sl_team_pin_part(*team, first, threads, err) : status;
    }
    return status;
}

static enum sl_status open_team(const struct sl_runtime_config *config, struct sl_runtime *r, struct sl_error *err) {
    if (config->team != NULL) {
        r->team = config->team;
        return SL_OK;
    }
    r->owns_team = true;
    if (config->ranks > 1) {
        return open_teams(config, r, err);
    }
    enum sl_status status = sl_team_create(config->threads, &r->team, err);
    return status == SL_OK && config->pin ? sl_team_pin(r->team, err) : status;
}

// Opens the device of a rank.
struct opener {
    enum sl_status (*open)(const struct opener *opener, int rank, struct sl_team *team, struct sl_device **device_out,
                           struct sl_error *err);
    const struct sl_ops *ops;       // of each rank
    const struct sl_plugin *plugin; // NULL for the CPU
    int first;                      // index of the first device
};

static enum sl_status open_all(const struct opener *opener, int n, struct sl_runtime *r, struct sl_error *err) {
    if (n <= 1) {
        enum sl_status status = opener->open(opener, 0, r->team, &r->device, err);
        r->ops = status == SL_OK ? opener->ops : r->ops;
        return status;
    }
    struct sl_ranks_config ranks = {
        .n = n, .ops = opener->ops, .group = opener->plugin != NULL ? opener->plugin->group : NULL};
    enum sl_status status = SL_OK;
    for (int i = 0; i < n && status == SL_OK; i++) {
        ranks.teams[i] = i == 0 ? r->team : r->others[i];
        status = opener->open(opener, i, ranks.teams[i], &ranks.devices[i], err);
    }
    SL_THEN(status, sl_ranks_open(&ranks, &r->device, &r->ops, err));
    for (int i = 0; i < n && status != SL_OK; i++) {
        sl_device_close(&ranks.devices[i]);
    }
    return status;
}

static enum sl_status open_cpu_device(const struct opener *opener, int, struct sl_team *team,
                                      struct sl_device **device_out, struct sl_error *err) {
    (void)opener;
    return sl_cpu_device_open(team, device_out, err);
}

static enum sl_status open_processors(const struct sl_runtime_config *config, struct sl_runtime *r,
                                      struct sl_error *err) {
    const struct opener opener = {.open = open_cpu_device, .ops = r->ops};
    return open_all(&opener, config->ranks, r, err);
}

static enum sl_status open_plugin_device(const struct opener *opener, int rank, struct sl_team *team,
                                         struct sl_device **device_out, struct sl_error *err) {
    char text[160];
    SL_TRY(opener->plugin->open(opener->first + rank, team, device_out, err));
    opener->plugin->describe(opener->first + rank, text, sizeof text);
    sl_log_info("runtime", "device=%s:%d is=\"%s\"", opener->plugin->name, opener->first + rank, text);
    return SL_OK;
}

static enum sl_status open_plugin(const char *name, const struct sl_runtime_config *config, int first,
                                  struct sl_runtime *r, struct sl_error *err) {
    struct opener opener = {.open = open_plugin_device, .first = first};
    SL_TRY(sl_plugin_find(name, &opener.plugin, err));
    opener.ops = opener.plugin->ops(r->ops);
    return open_all(&opener, config->ranks, r, err);
}

static enum sl_status open_best(const struct sl_runtime_config *config, struct sl_runtime *r, struct sl_error *err) {
    struct sl_error why;
    enum sl_status status = config->host_reader != NULL
                                ? sl_fail(&why, SL_ERR_UNSUPPORTED, "%s reads tensors as the host", config->host_reader)
                                : open_plugin("cuda", config, 0, r, &why);
    if (status != SL_ERR_UNSUPPORTED) {
        if (status != SL_OK && err != NULL) {
            *err = why;
        }
        return status;
    }
    if (config->ranks > 1) { // the user asked for several devices, and CPUs do not count as such
        sl_log_warn("runtime", "device=cpu ranks=%d not=cuda reason=\"%s\"", config->ranks, why.text);
    } else {
        sl_log_info("runtime", "device=cpu not=cuda reason=\"%s\"", why.text);
    }
    return open_processors(config, r, err);
}

static enum sl_status open_device(const struct sl_runtime_config *config, const struct sl_device_choice *choice,
                                  struct sl_runtime *r, struct sl_error *err) {
    enum sl_status status = SL_OK;
    switch (choice->kind) {
    case SL_DEVICE_AUTO:
        status = open_best(config, r, err);
        break;
    case SL_DEVICE_CPU:
        status = open_processors(config, r, err);
        break;
    case SL_DEVICE_CUDA:
        status = open_plugin("cuda", config, choice->index, r, err);
        break;
    case SL_DEVICE_EMULATED:
        status = open_plugin("emulated", config, 0, r, err);
        break;
    }
    if (status == SL_OK && config->host_reader != NULL && !r->device->ops->one_memory) {
        status =
            sl_fail(err, SL_ERR_UNSUPPORTED, "--device %s: %s reads tensors as the host, and has to use --device cpu",
                    config->device, config->host_reader);
    }
    if (status == SL_OK) {
        const struct sl_ops *instead = config->instead != NULL ? config->instead(r->ops) : NULL;
        r->ops = instead != NULL ? instead : r->ops;
        r->stream = sl_device_stream(r->device, SL_STREAM_COMPUTE);
        sl_device_limit_waits(r->device, config->stall_ms > 0 ? config->stall_ms : SL_DEVICE_STILL_MS);
    }
    return status;
}

static enum sl_status load_model(const struct sl_runtime_config *config, struct sl_runtime *r, struct sl_error *err) {
    struct sl_team *teams[SL_MAX_RANKS];
    for (int i = 0; i < SL_MAX_RANKS; i++) {
        teams[i] = i == 0 ? r->team : r->others[i];
    }
    const struct sl_loading_config reports = {config->model_dir, teams, SL_MAX_RANKS, config->loading_fn,
                                              config->loading_arg};
    struct sl_loading loading;
    SL_TRY(sl_loading_begin(&loading, &reports, err));
    bool shares = config->share_weights && sl_runtime_ranks(r) == 1 && config->instead == NULL && config->ops == NULL;
    if (shares && sl_processors_node("") < 0) { // one copy would be far from half of the threads
        shares = false;
        sl_log_info("runtime", "weights are not shared: this process runs on several NUMA nodes");
    }
    // The team packs weights: the member that will read a share packs it.
    sl_team_pin_caller(r->team);
    enum sl_status status = (shares ? sl_model_load_shared : sl_model_load)(
        config->model_dir, r->ops, config->weights, r->stream, &loading.progress, &r->model, err);
    sl_team_release_caller(r->team);
    sl_loading_end(&loading);
    return status;
}

// Loads the tokenizer in a thread of its own while the team packs weights: a large vocabulary takes one thread as long as
// a small model takes the team.
struct tokenizer_loading {
    const char *model_dir;
    pthread_t thread;
    struct sl_tokenizer *tokenizer;
    enum sl_status status;
    struct sl_error err;
};

static void *load_tokenizer(void *arg) {
    struct tokenizer_loading *loading = arg;
    loading->status = sl_tokenizer_load(loading->model_dir, &loading->tokenizer, &loading->err);
    return NULL;
}

// Loads the weights, and the tokenizer if it is wanted. If both fail, the error of the weights is reported.
static enum sl_status load_both(const struct sl_runtime_config *config, struct sl_runtime *r, struct sl_error *err) {
    struct tokenizer_loading loading = {.model_dir = config->model_dir};
    if (!config->tokenizer) {
        return load_model(config, r, err);
    }
    SL_TRY(sl_thread_start("tokenizer", load_tokenizer, &loading, &loading.thread, err));
    enum sl_status status = load_model(config, r, err);
    pthread_join(loading.thread, NULL);
    r->tokenizer = loading.tokenizer;
    if (status == SL_OK && loading.status != SL_OK) {
        status = sl_fail(err, loading.status, "%s", loading.err.text);
    }
    return status;
}

// Rejects a model with weights on a tier that computes nothing, and one without weights on any other.
static enum sl_status check_hollow(const struct sl_runtime_config *config, const struct sl_ops *ops,
                                   struct sl_error *err) {
    struct sl_model_config *model = malloc(sizeof *model);
    enum sl_status status =
        model ? sl_model_config_load(config->model_dir, model, err) : sl_fail(err, SL_ERR_EXHAUSTED, "out of memory");
    bool timed = sl_timed_is_named(ops->name);
    if (status == SL_OK && timed && !model->is_hollow) {
        status =
            sl_fail(err, SL_ERR_PRECONDITION,
                    "%s: tier %s computes nothing, and this model has weights; make one without: `sluice bench hollow`",
                    config->model_dir, ops->name);
    } else if (status == SL_OK && !timed && model->is_hollow) {
        status = sl_fail(err, SL_ERR_PRECONDITION,
                         "%s has the shape of a model and no weights; only --tier %sNAME runs it (NAME: %s)",
                         config->model_dir, SL_TIMED_PREFIX, sl_timed_names());
    }
    free(model);
    return status;
}

static enum sl_status open_model(const struct sl_runtime_config *config, struct sl_runtime *r, struct sl_error *err) {
    SL_TRY(check_hollow(config, r->ops, err));
    SL_TRY(load_both(config, r, err));
    for (int i = 0; sl_runtime_ranks(r) > 1 && i < sl_runtime_ranks(r); i++) {
        sl_log_info("runtime", "rank=%d of=%d weights=%zu", i, sl_runtime_ranks(r),
                    sl_ranks_weight_bytes(r->device, i));
    }
    r->config = sl_model_get_config(r->model);
    if (config->max_rows > 0) {
        SL_TRY(sl_engine_create(r->model, r->stream, config->max_rows, &r->engine, err));
    }
    return SL_OK;
}

static enum sl_status select_tier(const struct sl_runtime_config *config, const struct sl_ops **ops_out,
                                  struct sl_error *err) {
    const struct sl_ops *fastest;
    if (sl_timed_is_named(config->tier)) { // stores, which have no model, do their work
        enum sl_status status = sl_ops_select("auto", ops_out, err);
        return status == SL_OK && config->model_dir ? sl_timed_ops(config->tier, *ops_out, ops_out, err) : status;
    }
    enum sl_status status = sl_ops_select(config->tier, &fastest, err);
    *ops_out = fastest;
    if (status != SL_OK || config->model_dir == NULL || config->weights != SL_WEIGHT_STORED ||
        !sl_model_exceeds_bf16(config->model_dir)) {
        return status;
    }
    SL_TRY(sl_ops_select_wide(config->tier, ops_out, err));
    if (*ops_out != fastest) {
        sl_log_info("runtime", "tier=%s faster=%s reason=\"weights have more bits than bf16\"", (*ops_out)->name,
                    fastest->name);
    }
    return SL_OK;
}

enum sl_status sl_runtime_open(const struct sl_runtime_config *asked, struct sl_runtime *runtime_out,
                               struct sl_error *err) {
    struct sl_runtime runtime = {.ops = asked->ops};
    struct sl_device_choice choice;
    SL_TRY(sl_device_choice_parse(asked->device, &choice, err));
    SL_TRY(sl_device_choice_add_ranks(&choice, asked->ranks, err));
    SL_FAIL_IF(choice.ranks > 1 && asked->team != NULL, err, SL_ERR_INVALID, "%d ranks: each has a team of its own",
               choice.ranks);
    struct sl_runtime_config with_ranks = *asked, *config = &with_ranks;
    with_ranks.ranks = choice.ranks;
    enum sl_status status = config->ops != NULL ? SL_OK : select_tier(config, &runtime.ops, err);
    SL_THEN(status, open_team(config, &runtime, err));
    SL_THEN(status, open_device(config, &choice, &runtime, err));
    if (status == SL_OK && !runtime.device->ops->one_memory) {
        status = sl_transfer_create(runtime.device, &runtime.transfer, err);
    }
    if (status == SL_OK && config->model_dir != NULL) {
        struct sl_error why = {0};
        status = open_model(config, &runtime, &why);
        if (status != SL_OK) { // the error names the model folder, too
            status = sl_fail(err, status == SL_ERR_NOT_FOUND ? SL_ERR_INVALID : status, "%s", why.text);
        }
    }
    SL_TRY_OR(status, sl_runtime_close(&runtime));
    *runtime_out = runtime;
    return SL_OK;
}

int sl_runtime_ranks(const struct sl_runtime *runtime) {
    return runtime->device != NULL ? sl_ranks_count(runtime->device) : 1;
}

size_t sl_runtime_usual_arena_bytes(const struct sl_runtime *r) {
    bool apart = r->device != NULL && !r->device->ops->one_memory;
    return apart ? sl_device_room(r->device) / 100 * 85 : (size_t)1 << 30;
}

_Static_assert(SL_MAX_RANKS <= SL_ARENA_RANGES, "a range for each rank");

// Opens a range of an arena in the memory of a rank's device.
static enum sl_status open_range(struct sl_runtime *r, int rank, size_t bytes, struct sl_arena **range_out,
                                 struct sl_error *err) {
    struct sl_device *device = sl_ranks_device(r->device, rank);
    if (bytes < SL_ARENA_UNIT) { // 85% of no free memory
        return sl_fail(
            err, SL_ERR_EXHAUSTED,
            "the device has no room for a KV cache beside the model: %zu bytes are free; smaller weights leave more",
            sl_device_room(device));
    }
    void *memory = sl_device_alloc(device, SL_MEMORY_DEVICE, bytes + SL_ARENA_UNIT);
    uintptr_t base = ((uintptr_t)memory + SL_ARENA_UNIT - 1) / SL_ARENA_UNIT * SL_ARENA_UNIT;
    r->arena_memory[rank] = memory;
    return memory != NULL
               ? sl_arena_create((void *)base, bytes, range_out, err)
               : sl_fail(err, SL_ERR_EXHAUSTED,
                         "the device has no room for a KV cache of %zu bytes: take less than the %zu that are free",
                         bytes, sl_device_room(device));
}

enum sl_status sl_runtime_open_arena(struct sl_runtime *r, size_t bytes, struct sl_error *err) {
    int n = sl_runtime_ranks(r);
    if (r->device->ops->one_memory) {
        return sl_arena_create_mapped(bytes, &r->arena, err);
    }
    enum sl_status status = SL_OK;
    for (int i = 0; i < n && status == SL_OK; i++) {
        struct sl_arena *range = NULL;
        struct sl_error why;
        status = open_range(r, i, bytes / (size_t)n, &range, &why);
        if (status == SL_OK && i == 0) {
            r->arena = range;
        } else if (status == SL_OK) {
            sl_arena_join(r->arena, &range);
        } else if (n > 1) {
            sl_ranks_say_whose(i, n, status, &why, err);
        } else if (err != NULL) {
            *err = why;
        }
    }
    return status;
}

void sl_runtime_close(struct sl_runtime *runtime) {
    if (sl_runtime_ranks(runtime) > 1 && sl_device_has_failed(runtime->device)) {
        // A rank has failed and cannot be waited for. It may still use this memory, which therefore stays until the
        // process ends.
        *runtime = (struct sl_runtime){0};
        return;
    }
    sl_engine_destroy(&runtime->engine);
    sl_tokenizer_destroy(&runtime->tokenizer);
    sl_model_destroy(&runtime->model);
    sl_arena_destroy(&runtime->arena);
    for (int i = 0; runtime->device != NULL && i < sl_runtime_ranks(runtime); i++) {
        sl_device_free(sl_ranks_device(runtime->device, i), SL_MEMORY_DEVICE, runtime->arena_memory[i]);
    }
    sl_transfer_destroy(&runtime->transfer);
    sl_device_close(&runtime->device);
    for (int i = 1; i < SL_MAX_RANKS; i++) {
        sl_team_destroy(&runtime->others[i]);
    }
    if (runtime->owns_team) {
        sl_team_destroy(&runtime->team);
    }
    *runtime = (struct sl_runtime){0};
}
