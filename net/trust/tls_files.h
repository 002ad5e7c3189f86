// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the certificate files of a process, for gRPC and for the data plane, as options of every program, and the
 *          rule where a process may listen without them. docs/SECURITY.md.
 */
#pragma once

#include <stdbool.h>

#include "base/options/config.h"
#include "net/trust/tls_paths.h"

struct sockaddr;

// Options for the member `tls` of struct `type`. who: the certificate's role, as text.
#define SL_TLS_OPTIONS(type, tls, who)                                                                                 \
    SL_OPTION_ROW("tls-ca", 0, SL_OPTION_STRING, "", "FILE",                                                           \
                  "certificates of the cluster's authority, PEM; with --tls-cert and --tls-key",                       \
                  SL_FIELD(type, tls.ca)),                                                                             \
        SL_OPTION_ROW("tls-cert", 0, SL_OPTION_STRING, "", "FILE",                                                     \
                      "our certificate, of spiffe://CLUSTER/" who "/NAME", SL_FIELD(type, tls.certificate)),           \
        SL_OPTION_ROW("tls-key", 0, SL_OPTION_STRING, "", "FILE", "its key", SL_FIELD(type, tls.key)),                 \
        SL_OPTION_ROW("tls-revoked", 0, SL_OPTION_STRING, "", "FILE",                                                  \
                      "certificates that the authority has revoked: its CRLs, PEM; read again when they change",       \
                      SL_FIELD(type, tls.revoked))

// A further option of coordinators and workers.
#define SL_UNSTATED_ROLES_OPTION(type, tls)                                                                            \
    SL_OPTION_ROW("tls-unstated-roles", 0, SL_OPTION_FLAG, NULL, NULL,                                                 \
                  "accept workers' certificates without a role, during an upgrade: spiffe://CLUSTER/worker/NAME",      \
                  SL_FIELD(type, tls.accepts_unstated))

// A further option of programs that listen.
#define SL_INSECURE_OPTION(type, field)                                                                                \
    SL_OPTION_ROW("insecure", 0, SL_OPTION_FLAG, NULL, NULL,                                                           \
                  "without certificates, listen where other hosts can connect", SL_FIELD(type, field))

// Tells whether the process has certificates: the first three files are given, or none. SL_ERR_INVALID: only some are.
enum sl_status sl_tls_files_given(const struct sl_tls_files *files, bool *given_out, struct sl_error *err);

/*
 * Checks that we may listen at an address, `text` as the user gave it: with certificates, on loopback, or because
 * `insecure` allows it, which is logged. SL_ERR_INVALID names the remedy: `options` of certificates, or --insecure.
 */
#define SL_TLS_OPTION_NAMES "--tls-ca, --tls-cert and --tls-key"
enum sl_status sl_tls_may_listen(const struct sockaddr *address, const char *text, const char *options,
                                 bool has_certificates, bool insecure, struct sl_error *err);
