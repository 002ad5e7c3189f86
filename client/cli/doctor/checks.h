// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the checks of `sluice doctor`. Each adds its lines to the findings.
 *
 * To add one: write a function of this form, and call it in cmd_doctor.c; and in before_up.c, if a cluster cannot start where it
 * fails.
 */
#pragma once

#include <stdint.h>

#include "client/cli/cluster.h"
#include "client/cli/doctor/findings.h"

// Needs of a cluster on this machine.
struct sl_doctor_need {
    const char *model;   // path, or NULL
    const char *disk;    // folder of a store, or NULL
    int64_t arena_bytes; // of each worker
    int64_t n_workers;
};

// The machine: machine.c.
void sl_doctor_limits(struct sl_findings *findings);
void sl_doctor_memory(struct sl_findings *findings, const struct sl_doctor_need *need);
void sl_doctor_shm(struct sl_findings *findings, const struct sl_doctor_need *need);
void sl_doctor_disk(struct sl_findings *findings, const struct sl_doctor_need *need);
void sl_doctor_processor(struct sl_findings *findings);
void sl_doctor_versions(struct sl_findings *findings);

// Segments of shared memory that killed processes left in `folder` (/dev/shm): segments.c. clean: removes them.
void sl_doctor_segments(struct sl_findings *findings, const char *folder, bool clean);

// Ports, clocks, peers and certificates: network.c. port: 0 is free always.
void sl_doctor_port(struct sl_findings *findings, const char *host, int64_t port, const char *option);
void sl_doctor_clock(struct sl_findings *findings);
// Asks the coordinator, if one listens, for its time. Needs gRPC.
void sl_doctor_coordinator(struct sl_findings *findings, const struct sl_tool_config *tool);
void sl_doctor_etcd(struct sl_findings *findings, const char *servers);
// Checks a PEM file, or every .pem and .crt file of a folder.
void sl_doctor_certificates(struct sl_findings *findings, const char *path);

// Rejects what would stop `sluice up`, before it starts a process. SL_ERR_PRECONDITION: the text has the remedy.
enum sl_status sl_doctor_before_up(const struct sl_cluster_config *config, struct sl_error *err);
