// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the certificate of HTTPS and its key, from files that may be replaced while the gateway serves: new
 *          connections get the new one, existing connections stay.
 *
 * Design: libmicrohttpd calls us for each handshake of GnuTLS, but passes no argument of ours: we find the certificate
 *         through the connection's context. GnuTLS frees the copy that a handshake gets, so we need not know when the
 *         handshake ends. If a pair is damaged or does not match, the previous pair stays in use, e.g. while one file
 *         has been replaced and the other not yet.
 * Threads: the HTTP daemon's.
 */
#pragma once

#include <gnutls/abstract.h>
#include <microhttpd.h>

#include "base/status.h"

struct sl_https_certificate;

// Opens a certificate in PEM files; the caller keeps the paths valid. SL_ERR_INVALID, SL_ERR_IO: the text names the
// option and the error.
enum sl_status sl_https_certificate_open(const char *certificate, const char *key,
                                         struct sl_https_certificate **certificate_out, struct sl_error *err);
void sl_https_certificate_close(struct sl_https_certificate **certificate); // accepts NULL, nulls

// Gives a handshake its certificate: MHD_OPTION_HTTPS_CERT_CALLBACK2, for connections whose sl_http_connections_context() is
// the certificate.
int sl_https_give_certificate(gnutls_session_t session, const struct gnutls_cert_retr_st *asked,
                              gnutls_pcert_st **list_out, unsigned *n_out, gnutls_ocsp_data_st **ocsp_out,
                              unsigned *n_ocsp_out, gnutls_privkey_t *key_out, unsigned *flags_out);
