// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: this process's credentials for gRPC, and the identities of callers and servers.
 *
 * Design: gRPC's TLS credentials read the files again by themselves, so that certificates can be replaced while the
 *         process runs. A server is identified not by host name, which pods and addresses do not have, but by the
 *         identity in its certificate; our verifier reads that. A server checks its callers for each call, so that a
 *         refused caller gets the reason.
 */
#include <errno.h>
#include <grpc/support/alloc.h>
#include <grpc/support/string_util.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "net/rpc/rpc_internal.h"
#include "net/trust/certificate.h"
#include "net/trust/revocation.h"

enum { READ_AGAIN_S = 10 };

struct sl_rpc_credentials {
    grpc_tls_certificate_provider *provider;
    struct sl_identity self;
    struct sl_revocations *revocations; // NULL: no revocation list
    bool is_foreign;                    // servers are identified by host name
    bool accepts_unstated;
};

static enum sl_status check_readable(const struct sl_tls_files *files, struct sl_error *err) {
    const char *const paths[] = {files->ca, files->certificate, files->key};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        SL_FAIL_IF(access(paths[i], R_OK) != 0, err, SL_ERR_INVALID, "%s: %s", paths[i], strerror(errno));
    }
    return SL_OK;
}

static enum sl_status create(const struct sl_tls_files *files, bool is_foreign,
                             struct sl_rpc_credentials **credentials_out, struct sl_error *err) {
    bool given;
    enum sl_status status = sl_tls_files_given(files, &given, err);
    if (status == SL_OK && !given) {
        *credentials_out = NULL;
        return SL_OK;
    }
    struct sl_rpc_credentials *credentials = status == SL_OK ? calloc(1, sizeof *credentials) : NULL;
    SL_THEN_FAIL_IF(status, !credentials, err, SL_ERR_EXHAUSTED, "no memory for credentials");
    if (status == SL_OK && is_foreign) {
        status = check_readable(files, err);
    } else if (status == SL_OK) {
        status = sl_certificate_check(files, &credentials->self, err);
        SL_THEN(status, sl_revocations_open(files, &credentials->revocations, err));
    }
    SL_TRY_OR(status, free(credentials));
    credentials->is_foreign = is_foreign;
    credentials->accepts_unstated = files->accepts_unstated;
    if (status == SL_OK && files->accepts_unstated) {
        sl_log_warn("rpc", "tls-unstated-roles: a worker's certificate without a role may do what any worker may");
    }
    credentials->provider =
        grpc_tls_certificate_provider_file_watcher_create(files->key, files->certificate, files->ca, READ_AGAIN_S);
    *credentials_out = credentials;
    return SL_OK;
}

enum sl_status sl_rpc_credentials_create(const struct sl_tls_files *files, struct sl_rpc_credentials **credentials_out,
                                         struct sl_error *err) {
    return create(files, false, credentials_out, err);
}

enum sl_status sl_rpc_credentials_create_foreign(const struct sl_tls_files *files,
                                                 struct sl_rpc_credentials **credentials_out, struct sl_error *err) {
    return create(files, true, credentials_out, err);
}

void sl_rpc_credentials_destroy(struct sl_rpc_credentials **credentials_inout) {
    SL_TAKE_OR_RETURN(credentials, credentials_inout);
    grpc_tls_certificate_provider_release(credentials->provider);
    sl_revocations_close(&credentials->revocations);
    free(credentials);
}

const struct sl_identity *sl_rpc_credentials_self(const struct sl_rpc_credentials *credentials) {
    return credentials ? &credentials->self : &sl_identity_anybody;
}

// ---- servers that a client calls

struct expectation {
    grpc_tls_certificate_verifier_external verifier;
    char cluster[SL_CLUSTER_NAME_BYTES];
    struct sl_revocations *revocations; // owned by the credentials, which outlive it
    unsigned roles;
    char name[SL_IDENTITY_BYTES]; // "": any
};

static int verify_server(void *arg, grpc_tls_custom_verification_check_request *request,
                         grpc_tls_on_custom_verification_check_done_cb callback, void *callback_arg,
                         grpc_status_code *status_out, char **details_out) {
    (void)callback, (void)callback_arg; // only for verifiers that answer later
    const struct expectation *expectation = arg;
    const struct san_names *names = &request->peer_info.san_names;
    struct sl_error err;
    struct sl_identity server;
    enum sl_status status =
        names->uri_names_size == 1
            ? sl_identity_parse(names->uri_names[0], &server, &err)
            : sl_fail(&err, SL_ERR_INVALID, "a certificate without one URI, spiffe://CLUSTER/ROLE/NAME");
    SL_THEN(status, sl_identity_check(&server, expectation->cluster, expectation->roles, &err));
    SL_THEN(status, sl_identity_check_name(&server, expectation->name, &err));
    if (status == SL_OK) {
        const char *own = request->peer_info.peer_cert, *chain = request->peer_info.peer_cert_full_chain;
        status = sl_revocations_check_chain(expectation->revocations, own ? own : "", own ? strlen(own) : 0, &err);
        SL_THEN(status, chain && chain[0]
                            ? sl_revocations_check_chain(expectation->revocations, chain, strlen(chain), &err)
                            : SL_OK);
    }
    *status_out = status == SL_OK ? GRPC_STATUS_OK : GRPC_STATUS_UNAUTHENTICATED;
    *details_out = status == SL_OK ? NULL : gpr_strdup(err.text);
    return 1; // 1: the result is in *status already
}

static void cancel_verification(void *arg, grpc_tls_custom_verification_check_request *request) {
    (void)arg, (void)request; // verification never waits, so there is nothing to cancel
}

static void forget_expectation(void *arg) {
    free(arg);
}

static grpc_tls_credentials_options *tls_options(const struct sl_rpc_credentials *credentials) {
    grpc_tls_credentials_options *options = grpc_tls_credentials_options_create();
    grpc_tls_credentials_options_set_certificate_provider(options, credentials->provider);
    grpc_tls_credentials_options_watch_root_certs(options);
    grpc_tls_credentials_options_watch_identity_key_cert_pairs(options);
    return options;
}

grpc_channel_credentials *sl_rpc_channel_credentials(const struct sl_rpc_credentials *credentials, unsigned roles,
                                                     const char *name) {
    if (!credentials) {
        return grpc_insecure_credentials_create();
    }
    if (credentials->is_foreign) {
        grpc_tls_credentials_options *options = tls_options(credentials);
        grpc_tls_certificate_verifier *by_name = grpc_tls_certificate_verifier_host_name_create();
        grpc_tls_credentials_options_set_certificate_verifier(options, by_name);
        grpc_tls_certificate_verifier_release(by_name);
        return grpc_tls_credentials_create(options);
    }
    struct expectation *expectation = calloc(1, sizeof *expectation);
    if (!expectation) {
        return NULL;
    }
    expectation->verifier = (grpc_tls_certificate_verifier_external){.user_data = expectation,
                                                                     .verify = verify_server,
                                                                     .cancel = cancel_verification,
                                                                     .destruct = forget_expectation};
    snprintf(expectation->cluster, sizeof expectation->cluster, "%s", credentials->self.cluster);
    expectation->revocations = credentials->revocations;
    expectation->roles = sl_roles_accepted(roles, credentials->accepts_unstated);
    snprintf(expectation->name, sizeof expectation->name, "%s", name);
    grpc_tls_credentials_options *options = tls_options(credentials);
    grpc_tls_certificate_verifier *verifier = grpc_tls_certificate_verifier_external_create(&expectation->verifier);
    grpc_tls_credentials_options_set_certificate_verifier(options, verifier);
    grpc_tls_credentials_options_set_check_call_host(options, 0); // servers are not identified by host name
    grpc_tls_certificate_verifier_release(verifier);
    return grpc_tls_credentials_create(options);
}

// ---- callers of a server

grpc_server_credentials *sl_rpc_server_credentials(const struct sl_rpc_credentials *credentials) {
    if (!credentials) {
        return grpc_insecure_server_credentials_create();
    }
    grpc_tls_credentials_options *options = tls_options(credentials);
    grpc_tls_credentials_options_set_cert_request_type(options,
                                                       GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
    return grpc_tls_server_credentials_create(options);
}

// Returns a property of a connection; NULL: there is none of that name.
static const grpc_auth_property *find_property(grpc_auth_context *context, const char *name) {
    grpc_auth_property_iterator at = grpc_auth_context_find_properties_by_name(context, name);
    return grpc_auth_property_iterator_next(&at);
}

// Rejects a revoked caller. gRPC's chain at a server lacks the caller's own certificate, so that is checked too.
static enum sl_status check_revoked(const struct sl_rpc_credentials *credentials, grpc_auth_context *context,
                                    struct sl_error *err) {
    struct sl_revocations *revocations = credentials->revocations;
    if (!revocations) {
        return SL_OK;
    }
    const grpc_auth_property *own = find_property(context, GRPC_X509_PEM_CERT_PROPERTY_NAME);
    const grpc_auth_property *chain = find_property(context, GRPC_X509_PEM_CERT_CHAIN_PROPERTY_NAME);
    enum sl_status status =
        sl_revocations_check_chain(revocations, own ? own->value : "", own ? own->value_length : 0, err);
    return status == SL_OK && chain && chain->value_length > 0
               ? sl_revocations_check_chain(revocations, chain->value, chain->value_length, err)
               : status;
}

uint64_t sl_rpc_credentials_edition(const struct sl_rpc_credentials *credentials) {
    return credentials ? sl_revocations_edition(credentials->revocations) : 0;
}

enum sl_status sl_rpc_check_revoked(const struct sl_rpc_credentials *credentials, grpc_call *call,
                                    struct sl_error *err) {
    grpc_auth_context *context = grpc_call_auth_context(call);
    const enum sl_status status = check_revoked(credentials, context, err);
    grpc_auth_context_release(context);
    return status;
}

enum sl_status sl_rpc_identify(const struct sl_rpc_credentials *credentials, grpc_call *call, unsigned roles,
                               struct sl_identity *caller_out, struct sl_error *err) {
    if (!credentials) {
        *caller_out = sl_identity_anybody;
        return SL_OK;
    }
    grpc_auth_context *context = grpc_call_auth_context(call);
    const grpc_auth_property *property = find_property(context, GRPC_PEER_SPIFFE_ID_PROPERTY_NAME);
    char uri[256] = "";
    if (property && property->value_length < sizeof uri) {
        memcpy(uri, property->value, property->value_length);
        uri[property->value_length] = '\0';
    }
    enum sl_status revoked = check_revoked(credentials, context, err);
    grpc_auth_context_release(context);
    SL_TRY(revoked);
    enum sl_status status = sl_identity_parse(uri, caller_out, err);
    if (status != SL_OK) {
        return SL_ERR_DENIED;
    }
    return sl_identity_check(caller_out, credentials->self.cluster,
                             sl_roles_accepted(roles, credentials->accepts_unstated), err);
}
