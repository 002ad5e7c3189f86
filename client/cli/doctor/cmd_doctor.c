// SPDX-License-Identifier: Apache-2.0
#include "client/cli/doctor/cmd_doctor.h"

#include <string.h>

#include "client/cli/cluster_arena.h"
#include "client/cli/doctor/checks.h"
#include "engine/model/model.h"

#define USUAL_ARENA_BYTES (INT64_C(256) << 20)

struct doctor_config {
    struct sl_tool_config tool;
    const char *model, *host, *disk, *etcd;
    struct sl_option_list certificates;
    int64_t port, http_port, arena_bytes, n_workers;
    bool clean;
};

static const struct sl_option options[] = {
    {"model", 'm', SL_OPTION_MODEL, NULL, "MODEL", "check that there is memory for this model",
     SL_FIELD(doctor_config, model)},
    {"arena", 'a', SL_OPTION_SIZE, "0", "SIZE", "memory for KV of each worker; 0: as `sluice up` chooses it",
     SL_FIELD(doctor_config, arena_bytes)},
    {"workers", 0, SL_OPTION_INT, "3", "N", "workers on this machine", SL_FIELD(doctor_config, n_workers), 1, 96},
    {"host", 0, SL_OPTION_STRING, "127.0.0.1", "ADDRESS", "address that `sluice up` would listen on",
     SL_FIELD(doctor_config, host)},
    {"port", 0, SL_OPTION_INT, "7600", "PORT", "port of the coordinator; 0: not checked", SL_FIELD(doctor_config, port),
     0, 65535},
    {"http-port", 0, SL_OPTION_INT, "8000", "PORT", "port of the gateway; 0: not checked",
     SL_FIELD(doctor_config, http_port), 0, 65535},
    {"disk", 0, SL_OPTION_STRING, NULL, "DIR", "folder of KV stores", SL_FIELD(doctor_config, disk)},
    {"pem", 0, SL_OPTION_LIST, NULL, "PATH",
     "certificates to check: a PEM file, or a folder such as that of "
     "`sluice up --tls`; several times",
     SL_FIELD(doctor_config, certificates)},
    {"etcd", 0, SL_OPTION_STRING, NULL, "HOST:PORT,...", "etcd servers of the coordinators",
     SL_FIELD(doctor_config, etcd)},
    {"clean", 0, SL_OPTION_FLAG, NULL, NULL,
     "remove shared memory that killed processes left; not where containers share /dev/shm",
     SL_FIELD(doctor_config, clean)},
    SL_TOOL_OPTIONS,
};

static const struct sl_program program = {
    .name = "sluice doctor",
    .usage = "[options]",
    .summary = "Check whether this machine is fit for a cluster: limits, memory, clocks, certificates, ports, "
               "libraries. Each line says what it means for Sluice.",
    .epilog = "Exit code 1: a check failed. A warning alone does not fail.\n" SL_EXIT_CODES_HELP,
    SL_OPTIONS(options),
};

static int64_t arena_of(const struct doctor_config *config) {
    struct sl_model_config model;
    if (config->arena_bytes > 0) {
        return config->arena_bytes;
    }
    return config->model && sl_model_config_load(config->model, &model, NULL) == SL_OK
               ? sl_cluster_arena_bytes(&model, sl_cluster_memory(""), config->n_workers)
               : USUAL_ARENA_BYTES;
}

// A cluster that answers there is what the user wants.
static void check_ports(struct sl_findings *findings, const struct doctor_config *config) {
    char address[300];
    snprintf(address, sizeof address, "%s:%lld", config->host, (long long)config->port);
    for (size_t i = 0; i < findings->n; i++) {
        if (strcmp(findings->rows[i].check, "clock skew") == 0 && strcmp(address, config->tool.coordinator) == 0) {
            return;
        }
    }
    sl_doctor_port(findings, config->host, config->port, "--port");
    sl_doctor_port(findings, config->host, config->http_port, "--http-port");
}

static void check_all(struct sl_findings *findings, const struct doctor_config *config) {
    const struct sl_doctor_need need = {
        .model = config->model, .disk = config->disk, .arena_bytes = arena_of(config), .n_workers = config->n_workers};
    sl_doctor_versions(findings);
    sl_doctor_processor(findings);
    sl_doctor_limits(findings);
    sl_doctor_memory(findings, &need);
    sl_doctor_segments(findings, "/dev/shm", config->clean);
    sl_doctor_shm(findings, &need);
    sl_doctor_disk(findings, &need);
    sl_doctor_clock(findings);
    sl_doctor_coordinator(findings, &config->tool);
    check_ports(findings, config);
    if (config->etcd) {
        sl_doctor_etcd(findings, config->etcd);
    }
    const char *const own[] = {config->tool.tls.ca, config->tool.tls.certificate};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        if (own[i] && own[i][0]) {
            sl_doctor_certificates(findings, own[i]);
        }
    }
    for (int i = 0; i < config->certificates.n; i++) {
        sl_doctor_certificates(findings, config->certificates.items[i]);
    }
}

static enum sl_status examine(void *arg, struct sl_error *err) {
    struct doctor_config *config = arg;
    struct sl_findings findings = {0};
    (void)err; // what fails is a finding
    check_all(&findings, config);
    sl_findings_print(&findings, config->tool.json, stdout);
    config->tool.exit_code = sl_findings_failed(&findings) || findings.out_of_memory ? SL_EXIT_FAILED : SL_EXIT_OK;
    sl_findings_cleanup(&findings);
    return SL_OK;
}

SL_COMMAND_RUN(sl_command_doctor, doctor_config, program, examine)
