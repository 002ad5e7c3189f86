// SPDX-License-Identifier: Apache-2.0
#include "net/trust/tls_files.h"

#include <netinet/in.h>

#include "base/log.h"

static bool is_given(const char *path) {
    return path && path[0] != '\0';
}

enum sl_status sl_tls_files_given(const struct sl_tls_files *files, bool *given_out, struct sl_error *err) {
    int n = is_given(files->ca) + is_given(files->certificate) + is_given(files->key);
    SL_FAIL_IF(n != 0 && n != 3, err, SL_ERR_INVALID, SL_TLS_OPTION_NAMES " belong together");
    SL_FAIL_IF(n == 0 && is_given(files->revoked), err, SL_ERR_INVALID, "--tls-revoked: is for " SL_TLS_OPTION_NAMES);
    *given_out = n == 3;
    return SL_OK;
}

static bool is_loopback(const struct sockaddr *address) {
    return address->sa_family == AF_INET6
               ? IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)address)->sin6_addr)
               : address->sa_family == AF_INET &&
                     ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
}

enum sl_status sl_tls_may_listen(const struct sockaddr *address, const char *text, const char *options,
                                 bool has_certificates, bool insecure, struct sl_error *err) {
    if (has_certificates || is_loopback(address)) {
        return SL_OK;
    }
    if (insecure) {
        sl_log_warn("trust", "insecure: whoever reaches %s is obeyed, and can read what moves there", text);
        return SL_OK;
    }
    return sl_fail(err, SL_ERR_INVALID,
                   "address \"%s\": other hosts could connect, and there are no certificates; give %s, or --insecure",
                   text, options);
}
