// SPDX-License-Identifier: Apache-2.0
// Purpose: see checks.h: what would stop `sluice up`, told before it starts a process.
#include <limits.h>
#include <unistd.h>

#include "client/cli/doctor/checks.h"

enum sl_status sl_doctor_before_up(const struct sl_cluster_config *config, struct sl_error *err) {
    struct sl_findings findings = {0};
    char authority[PATH_MAX];
    sl_doctor_limits(&findings);
    for (int64_t i = 0; config->port > 0 && i < (config->n_coordinators > 1 ? config->n_coordinators : 1); i++) {
        sl_doctor_port(&findings, config->host, config->port + i, "--port");
    }
    if (config->has_gateway) {
        sl_doctor_port(&findings, config->host, config->http_port, "--http-port");
    }
    // Its authority stays; the other certificates are made anew.
    if (config->tls && (size_t)snprintf(authority, sizeof authority, "%s/ca.pem", config->tls) < sizeof authority &&
        access(authority, R_OK) == 0) {
        sl_doctor_certificates(&findings, authority);
    }
    const struct sl_finding *failed = sl_findings_failed(&findings);
    const enum sl_status status =
        failed ? sl_fail(err, SL_ERR_PRECONDITION, "%s: %s%s%s; `sluice doctor` checks the rest", failed->check,
                         failed->text, failed->remedy[0] ? ". Remedy: " : "", failed->remedy)
               : SL_OK;
    sl_findings_cleanup(&findings);
    return status;
}
