// SPDX-License-Identifier: Apache-2.0
#include "client/cli/commands/listing.h"

#include "base/clock.h"
#include "client/cli/table.h"
#include "base/options/config.h"

static const char *enum_name(const ProtobufCEnumDescriptor *type, int value) {
    const ProtobufCEnumValue *found = protobuf_c_enum_descriptor_get_value(type, value);
    return found ? found->name : "?";
}

const char *sl_job_state_name(Sluice__V1__JobState state) {
    return enum_name(&sluice__v1__job_state__descriptor, (int)state);
}

// Writes "5s", "12m", "3h", "2d".
static const char *format_age(int64_t ms, char *buf, size_t buf_bytes) {
    int64_t s = ms > 0 ? ms / 1000 : 0;
    long long n = s < 120 ? s : s < 7200 ? s / 60 : s < 172800 ? s / 3600 : s / 86400;
    snprintf(buf, buf_bytes, "%lld%c", n, s < 120 ? 's' : s < 7200 ? 'm' : s < 172800 ? 'h' : 'd');
    return buf;
}

void sl_jobs_print(Sluice__V1__Job *const *jobs, size_t n_jobs, FILE *file) {
    static const struct sl_column columns[] = {
        {"JOB", false},    {"STATE", false},   {"AGE", true},     {"PROMPT", true},  {"OUTPUT", true}, {"TTFT", true},
        {"CAPSULE", true}, {"PREFILL", false}, {"DECODE", false}, {"RECIPE", false}, {"LABEL", false},
    };
    struct sl_table table = SL_TABLE(columns);
    int64_t now_ms = sl_wall_ms();
    for (size_t i = 0; i < n_jobs; i++) {
        const Sluice__V1__Job *job = jobs[i];
        const Sluice__V1__Statistics *s = job->statistics;
        char text[32];
        sl_table_add(&table, "%s\t%s\t%s\t%lld\t%lld", job->job_id, sl_job_state_name(job->state),
                     format_age(now_ms - job->submitted_ms, text, sizeof text), (long long)job->n_prompt_tokens,
                     (long long)job->n_output_tokens);
        if (s && s->ttft_ms > 0) {
            sl_table_add(&table, "%.0f ms", s->ttft_ms);
        } else {
            sl_table_add(&table, "-");
        }
        sl_table_add(&table, "%s",
                     s && s->capsule_bytes > 0 ? sl_format_bytes((double)s->capsule_bytes, text, sizeof text) : "-");
        sl_table_add(&table, "%s", job->prefill_worker[0] ? job->prefill_worker : "-");
        sl_table_add(&table, "%s", job->decode_worker[0] ? job->decode_worker : "-");
        sl_table_add(&table, "%s\t%s", job->recipe, job->label);
    }
    sl_table_finish(&table, file);
}

static void add_worker(struct sl_table *table, const Sluice__V1__WorkerStatus *worker) {
    static const Sluice__V1__WorkerInfo no_info = SLUICE__V1__WORKER_INFO__INIT;
    static const Sluice__V1__WorkerLoad no_load = SLUICE__V1__WORKER_LOAD__INIT;
    const Sluice__V1__WorkerInfo *info = worker->info ? worker->info : &no_info;
    const Sluice__V1__WorkerLoad *load = worker->load ? worker->load : &no_load;
    const char *role = info->reads ? "BOTH" : enum_name(&sluice__v1__worker_role__descriptor, (int)info->role);
    char used[32], arena[32], stored[32], offloaded[32];
    sl_table_add(table, "%s", info->name);
    sl_table_add(table, "%s\t%s\t%d/%d\t%s of %s\t%lld\t%.0f", role,
                 enum_name(&sluice__v1__worker_state__descriptor, (int)worker->state), load->jobs, info->max_jobs,
                 sl_format_bytes((double)load->arena_used_bytes, used, sizeof used),
                 sl_format_bytes((double)info->arena_bytes, arena, sizeof arena), (long long)load->leases,
                 load->tokens_per_s);
    if (info->role == SLUICE__V1__WORKER_ROLE__KVSTORE) {
        sl_table_add(table, "%lld, %s\t%lld, %s, %.0f%% busy", (long long)load->stored_capsules,
                     sl_format_bytes((double)load->stored_bytes, stored, sizeof stored), (long long)load->annexes,
                     sl_format_bytes((double)load->offloaded_bytes, offloaded, sizeof offloaded),
                     100 * load->scan_load);
    } else {
        sl_table_add(table, "-\t-");
    }
    sl_table_add(table, "%lld ms\t%s", (long long)worker->heartbeat_age_ms, info->rpc_address);
    sl_table_add(table, "%s", info->fabric_address[0] ? info->fabric_address : "-");
}

void sl_workers_print(const Sluice__V1__WorkersReply *reply, FILE *file) {
    static const struct sl_column columns[] = {
        {"WORKER", false},   {"ROLE", false},     {"STATE", false}, {"JOBS", true},
        {"ARENA", true},     {"LEASES", true},    {"TOK/S", true},  {"STORED", true},
        {"OFFLOADED", true}, {"HEARTBEAT", true}, {"RPC", false},   {"FABRIC", false},
    };
    struct sl_table table = SL_TABLE(columns);
    for (size_t i = 0; i < reply->n_workers; i++) {
        add_worker(&table, reply->workers[i]);
    }
    sl_table_finish(&table, file);
}
