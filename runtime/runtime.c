// SPDX-License-Identifier: Apache-2.0
// Operations, threads, device, model, tokenizer and engine, opened in this order. See runtime.h.
#include "runtime/transfer.h"

#include "base/log.h"
#include "base/processors.h"
#include "runtime/plugin.h"
#include "tensor/cpu/device.h"
#include "tensor/cpu/tiers.h"
#include "tensor/cuda/emulated/driver.h"
#include "tensor/cuda/table/ops.h"

// Neighbours in the machine are of one rank: where the threads are pinned, ranks fill one NUMA node after the other.
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

static enum sl_status open_processors(const struct sl_runtime_config *config, struct sl_runtime *r,
                                      struct sl_error *err) {
    if (config->ranks <= 1) {
        return sl_cpu_device_open(r->team, &r->device, err);
    }
    struct sl_ranks_config ranks = {.n = config->ranks, .ops = r->ops};
    enum sl_status status = SL_OK;
    for (int i = 0; i < config->ranks && status == SL_OK; i++) {
        ranks.teams[i] = i == 0 ? r->team : r->others[i];
        status = sl_cpu_device_open(ranks.teams[i], &ranks.devices[i], err);
    }
    status = status == SL_OK ? sl_ranks_open(&ranks, &r->device, &r->ops, err) : status;
    for (int i = 0; i < config->ranks && status != SL_OK; i++) {
        sl_device_close(&ranks.devices[i]);
    }
    return status;
}

static enum sl_status open_emulated(struct sl_runtime *r, struct sl_error *err) {
    r->ops = sl_gpu_ops(&sl_gpu_emulator, r->ops);
    return sl_gpu_device_open(&sl_gpu_emulator, 0, r->team, &r->device, err);
}

static enum sl_status open_cuda(int index, struct sl_runtime *r, struct sl_error *err) {
    const struct sl_plugin *plugin;
    enum sl_status status = sl_plugin_find(&plugin, err);
    if (status == SL_OK) {
        status = plugin->open(index, r->team, &r->device, err);
    }
    if (status == SL_OK) {
        char text[160];
        r->ops = plugin->ops(r->ops);
        plugin->describe(text, sizeof text);
        sl_log_info("runtime", "device=cuda:%d is=\"%s\"", index, text);
    }
    return status;
}

static enum sl_status open_best(const struct sl_runtime_config *config, struct sl_runtime *r, struct sl_error *err) {
    struct sl_error why;
    enum sl_status status;
    if (config->host_reader != NULL) {
        status = sl_fail(&why, SL_ERR_UNSUPPORTED, "%s reads tensors as the host", config->host_reader);
    } else if (config->ranks > 1) {
        status = sl_fail(&why, SL_ERR_UNSUPPORTED, "ranks are teams of processors");
    } else {
        status = open_cuda(0, r, &why);
    }
    if (status != SL_ERR_UNSUPPORTED) {
        if (status != SL_OK && err != NULL) {
            *err = why;
        }
        return status;
    }
    sl_log_info("runtime", "device=cpu not=cuda reason=\"%s\"", why.text);
    return open_processors(config, r, err);
}

static enum sl_status open_device(const struct sl_runtime_config *config, struct sl_runtime *r, struct sl_error *err) {
    struct sl_device_choice choice;
    enum sl_status status = sl_device_choice_parse(config->device, &choice, err);
    status = status == SL_OK ? sl_device_choice_check_ranks(&choice, config->ranks, err) : status;
    if (status != SL_OK) {
        return status;
    }
    switch (choice.kind) {
    case SL_DEVICE_AUTO:
        status = open_best(config, r, err);
        break;
    case SL_DEVICE_CPU:
        status = open_processors(config, r, err);
        break;
    case SL_DEVICE_CUDA:
        status = open_cuda(choice.index, r, err);
        break;
    case SL_DEVICE_EMULATED:
        status = open_emulated(r, err);
        break;
    }
    if (status == SL_OK && config->host_reader != NULL && !r->device->ops->one_memory) {
        status =
            sl_fail(err, SL_ERR_UNSUPPORTED, "--device %s: %s reads tensors as the host, and has to use --device cpu",
                    config->device, config->host_reader);
    }
    if (status == SL_OK) {
        r->stream = sl_device_stream(r->device, SL_STREAM_COMPUTE);
    }
    return status;
}

static enum sl_status open_model(const struct sl_runtime_config *config, struct sl_runtime *r, struct sl_error *err) {
    // Weights are packed by the team, each share where the member runs that will read it.
    sl_team_pin_caller(r->team);
    enum sl_status status = sl_model_load(config->model_dir, r->ops, config->weights, r->stream, &r->model, err);
    sl_team_release_caller(r->team);
    if (status == SL_OK) {
        r->config = sl_model_get_config(r->model);
        status = config->tokenizer ? sl_tokenizer_load(config->model_dir, &r->tokenizer, err) : SL_OK;
    }
    if (status == SL_OK && config->max_rows > 0) {
        status = sl_engine_create(r->model, r->stream, config->max_rows, &r->engine, err);
    }
    return status;
}

enum sl_status sl_runtime_open(const struct sl_runtime_config *config, struct sl_runtime *runtime_out,
                               struct sl_error *err) {
    struct sl_runtime runtime = {.ops = config->ops};
    if (config->ranks < 0 || config->ranks > SL_MAX_RANKS || (config->ranks > 1 && config->team != NULL)) {
        return sl_fail(err, SL_ERR_INVALID, "%d ranks: expected 1 to %d, with teams of their own", config->ranks,
                       SL_MAX_RANKS);
    }
    enum sl_status status = config->ops != NULL ? SL_OK : sl_ops_select(config->tier, &runtime.ops, err);
    if (status == SL_OK) {
        status = open_team(config, &runtime, err);
    }
    if (status == SL_OK) {
        status = open_device(config, &runtime, err);
    }
    if (status == SL_OK && !runtime.device->ops->one_memory) {
        status = sl_transfer_create(runtime.device, &runtime.transfer, err);
    }
    if (status == SL_OK && config->model_dir != NULL) {
        struct sl_error why = {0};
        status = open_model(config, &runtime, &why);
        if (status != SL_OK) { // a model without one of its files is a model that was named in vain
            status = sl_fail(err, status == SL_ERR_NOT_FOUND ? SL_ERR_INVALID : status, "%s", why.text);
        }
    }
    if (status != SL_OK) {
        sl_runtime_close(&runtime);
        return status;
    }
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

enum sl_status sl_runtime_open_arena(struct sl_runtime *r, size_t bytes, struct sl_error *err) {
    if (r->device->ops->one_memory) {
        return sl_arena_create_mapped(bytes, &r->arena, err);
    }
    r->arena_memory = sl_device_alloc(r->device, SL_MEMORY_DEVICE, bytes + SL_ARENA_UNIT);
    uintptr_t base = ((uintptr_t)r->arena_memory + SL_ARENA_UNIT - 1) / SL_ARENA_UNIT * SL_ARENA_UNIT;
    return r->arena_memory != NULL
               ? sl_arena_create((void *)base, bytes, &r->arena, err)
               : sl_fail(err, SL_ERR_EXHAUSTED,
                         "the device has no room for a KV cache of %zu bytes: %zu are free; see --arena", bytes,
                         sl_device_room(r->device));
}

void sl_runtime_close(struct sl_runtime *runtime) {
    if (sl_runtime_ranks(runtime) > 1 && sl_device_has_failed(runtime->device)) {
        // A rank is lost, cannot be waited for, and may come back to all this: it stays until the process ends.
        *runtime = (struct sl_runtime){0};
        return;
    }
    sl_engine_destroy(&runtime->engine);
    sl_tokenizer_destroy(&runtime->tokenizer);
    sl_model_destroy(&runtime->model);
    sl_arena_destroy(&runtime->arena);
    if (runtime->device != NULL) {
        sl_device_free(runtime->device, SL_MEMORY_DEVICE, runtime->arena_memory);
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
